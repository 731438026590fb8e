//! Records the gateway's calls to services, and rejects selected ones.

use std::sync::{Arc, Mutex};

use microblog_chassis::Service;
use tonic::{
    GrpcMethod, Request, Status,
    service::{Interceptor, InterceptorLayer, Routes},
};

/// A recorder between the gateway and its services.
#[derive(Clone, Default)]
pub(crate) struct CallRecorder(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    calls: Vec<String>,
    rejected: Option<(&'static str, Status)>,
    /// The number of calls of that method that are admitted first.
    admitted: usize,
}

impl CallRecorder {
    /// Returns a service with this recorder.
    pub(crate) fn on(&self, service: Service) -> Service {
        let routes = service.routes.into_axum_router().layer(InterceptorLayer::new(self.clone()));
        Service { routes: Routes::from(routes), handler: None, ..service }
    }

    /// Returns the calls since the last invocation, such as `user.Authenticate`, sorted: concurrent
    /// calls have no order.
    pub(crate) fn calls(&self) -> Vec<String> {
        let mut calls = std::mem::take(&mut self.0.lock().unwrap().calls);
        calls.sort_unstable();
        calls
    }

    /// Rejects all calls of a method from now on.
    pub(crate) fn reject(&self, method: &'static str, status: Status) {
        self.reject_after(0, method, status);
    }

    /// Rejects all calls of a method after the next `count`.
    pub(crate) fn reject_after(&self, count: usize, method: &'static str, status: Status) {
        let mut state = self.0.lock().unwrap();
        (state.rejected, state.admitted) = (Some((method, status)), count);
    }

    /// Admits all calls again.
    pub(crate) fn reject_none(&self) {
        self.0.lock().unwrap().rejected = None;
    }
}

impl Interceptor for CallRecorder {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let method: &GrpcMethod<'_> = request.extensions().get().unwrap();
        let package = method.service().split('.').nth(1).unwrap();
        let call = format!("{package}.{}", method.method());
        let mut state = self.0.lock().unwrap();
        let rejected = state.rejected.as_ref().filter(|(method, _)| *method == call);
        let mut rejected = rejected.map(|(_, status)| status.clone());
        if rejected.is_some() && state.admitted > 0 {
            (rejected, state.admitted) = (None, state.admitted - 1);
        }
        state.calls.push(call);
        rejected.map_or(Ok(request), Err)
    }
}
