//! Records the gateway's calls to services, and rejects selected ones.

use std::{
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use microblog_chassis::Service;
use tokio::time::sleep;
use tonic::{
    Request, Status,
    codegen::http,
    service::{Interceptor, InterceptorLayer, Routes},
};
use tower::util::{MapFutureLayer, MapRequestLayer};

/// How long each call is held while stages are measured: longer than a caller takes to begin all
/// calls of a stage.
const HELD: Duration = Duration::from_millis(100);

/// A recorder between the gateway and its services.
#[derive(Clone, Default)]
pub(crate) struct CallRecorder(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    calls: Vec<String>,
    rejected: Option<(&'static str, Status)>,
    /// The number of calls of that method that are admitted first.
    admitted: usize,
    /// Whether stages are measured.
    measures: bool,
    /// The latest stage that calls have begun, and ended, since the measurement began.
    stages: (usize, usize),
}

impl CallRecorder {
    /// Returns a service with this recorder.
    pub(crate) fn on(&self, service: Service) -> Service {
        let recorder = self.clone();
        let held = MapFutureLayer::new(move |call| recorder.held(call));
        let routes = service.routes.into_axum_router();
        let routes = routes.layer(InterceptorLayer::new(self.clone())).layer(held);
        let routes = routes.layer(MapRequestLayer::new(with_path));
        Service { routes: Routes::from(routes), handler: None, ..service }
    }

    /// Returns the calls since the last invocation, such as `user.Authenticate`, sorted: concurrent
    /// calls have no order.
    pub(crate) fn calls(&self) -> Vec<String> {
        let mut calls = std::mem::take(&mut self.0.lock().unwrap().calls);
        calls.sort_unstable();
        calls
    }

    /// Begins or ends the measurement of stages.
    pub(crate) fn measure_stages(&self, measures: bool) {
        let mut state = self.0.lock().unwrap();
        (state.measures, state.stages) = (measures, (0, 0));
    }

    /// Returns the number of stages: the longest sequence of calls of which each began after the
    /// one before it had ended.
    pub(crate) fn stages(&self) -> usize {
        self.0.lock().unwrap().stages.0
    }

    /// Holds a call, so that the others of its stage begin before it ends.
    fn held<F: Future>(&self, call: F) -> impl Future<Output = F::Output> + use<F> {
        let state = self.0.clone();
        let stage = {
            let State { measures, stages: (begun, ended), .. } = &mut *state.lock().unwrap();
            let stage = *ended + 1;
            *begun = stage.max(*begun);
            measures.then_some(stage)
        };
        async move {
            let Some(stage) = stage else { return call.await };
            sleep(HELD).await;
            let answer = call.await;
            let ended = &mut state.lock().unwrap().stages.1;
            *ended = stage.max(*ended);
            answer
        }
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

/// The path of a call, which an interceptor does not see otherwise.
#[derive(Clone)]
struct Path(String);

fn with_path<B>(mut request: http::Request<B>) -> http::Request<B> {
    let path = Path(request.uri().path().to_owned());
    request.extensions_mut().insert(path);
    request
}

impl Interceptor for CallRecorder {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Path(path) = request.extensions().get().unwrap();
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap();
        let call = format!("{}.{method}", service.split('.').nth(1).unwrap());
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
