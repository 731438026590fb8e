//! Listens in on what services are asked, and refuses in their place.

use std::sync::{Arc, Mutex};

use microblog_chassis::Service;
use tonic::{
    GrpcMethod, Request, Status,
    service::{Interceptor, InterceptorLayer, Routes},
};

/// A place between the gateway and its services.
#[derive(Clone, Default)]
pub(crate) struct Tap(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    calls: Vec<String>,
    refused: Option<(&'static str, Status)>,
    /// How many calls of that method are let through before.
    let_through: usize,
}

impl Tap {
    /// Returns a service that is listened in on.
    pub(crate) fn on(&self, service: Service) -> Service {
        let routes = service.routes.into_axum_router().layer(InterceptorLayer::new(self.clone()));
        Service { routes: Routes::from(routes), handler: None, ..service }
    }

    /// Returns what was called since this was last asked, such as `user.Authenticate`, in the order
    /// of the alphabet: what goes out at once has none of its own.
    pub(crate) fn calls(&self) -> Vec<String> {
        let mut calls = std::mem::take(&mut self.0.lock().unwrap().calls);
        calls.sort_unstable();
        calls
    }

    /// Has all calls of a method refused from now on.
    pub(crate) fn refuse(&self, method: &'static str, status: Status) {
        self.refuse_after(0, method, status);
    }

    /// Has all calls of a method refused after so many.
    pub(crate) fn refuse_after(&self, count: usize, method: &'static str, status: Status) {
        let mut state = self.0.lock().unwrap();
        (state.refused, state.let_through) = (Some((method, status)), count);
    }

    /// Lets all calls through again.
    pub(crate) fn refuse_nothing(&self) {
        self.0.lock().unwrap().refused = None;
    }
}

impl Interceptor for Tap {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let method: &GrpcMethod<'_> = request.extensions().get().unwrap();
        let package = method.service().split('.').nth(1).unwrap();
        let call = format!("{package}.{}", method.method());
        let mut state = self.0.lock().unwrap();
        let refused = state.refused.as_ref().filter(|(method, _)| *method == call);
        let mut refused = refused.map(|(_, status)| status.clone());
        if refused.is_some() && state.let_through > 0 {
            (refused, state.let_through) = (None, state.let_through - 1);
        }
        state.calls.push(call);
        refused.map_or(Ok(request), Err)
    }
}
