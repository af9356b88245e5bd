//! Messages to the store. The pump sends requests one after the other, and applies the faults of each request.

use std::time::Duration;

use super::Pump;
use crate::model::error::Error;
use crate::model::protocol::{Request, Response};
use crate::testing::Traffic;
use crate::testing::plan::{InjectedLoss, Loss, RequestFaults};
use crate::testing::session_link::{QueuedRequest, ReplySender};

pub(super) struct InFlight {
    pub(super) response: Response,
    pub(super) answer: ReplySender,
    pub(super) delay: Duration,
    pub(super) lost: bool,
}

impl Pump {
    /// Returns the next request, or `None` if a new command must be carried out first.
    fn next_request(&mut self) -> Option<QueuedRequest> {
        let mut link_state = self.session.link_state.lock();
        match link_state.commands.is_empty() {
            true => link_state.requests.pop_front(),
            false => None,
        }
    }

    pub(super) fn forward(&mut self) -> bool {
        if !self.is_open() {
            return false;
        }
        let Some(mut waiting) = self.next_request() else {
            return false;
        };
        let fate = self.fate_of(&mut waiting);
        match self.session.status.timeout() {
            // After twice the timeout the session has ended, even if the server expires sessions late.
            Some(timeout) if fate.expire => self.disconnect(Some(2 * timeout), None),
            None if fate.expire => self.expire(),
            _ if fate.disconnect => {
                let outage = self.outage();
                self.disconnect(Some(outage), None);
            }
            _ => {}
        }
        if let Some(length) = fate.pause {
            self.pause(Some(length));
        }
        if self.is_open() && !fate.expire {
            self.send(waiting, fate);
        } else {
            // Requests keep their order, so send this request first after the reconnection.
            self.session.link_state.lock().requests.push_front(waiting);
        }
        true
    }

    fn fate_of(&mut self, waiting: &mut QueuedRequest) -> RequestFaults {
        if let Some(loss) = InjectedLoss::take(&mut self.orders, &waiting.request) {
            return RequestFaults {
                loss: Some(loss),
                ..RequestFaults::default()
            };
        }
        // Draw the faults only once per request, so that a request that waits for a reconnection causes no second
        // outage.
        if std::mem::replace(&mut waiting.drawn, true) {
            return RequestFaults::default();
        }
        self.session.shared.plan.lock().draw(&mut self.random)
    }

    fn send(&mut self, waiting: QueuedRequest, fate: RequestFaults) {
        let QueuedRequest {
            request, answer, ..
        } = waiting;
        self.session.count(Traffic::of_request(&request));
        if fate.loss == Some(Loss::Request) {
            let outage = self.outage();
            return self.disconnect(Some(outage), Some(answer));
        }
        // Submit the request without holding the link's lock, because the request may fire watches of this session,
        // whose watchers take this lock.
        let Some(inner) = self.session.inner() else {
            return;
        };
        let is_any_delete = matches!(
            request,
            Request::Withdraw { .. } | Request::Delete { version: None, .. }
        );
        let lost = fate.loss == Some(Loss::Reply);
        let response = match fate.loss {
            Some(Loss::Refused(error)) => Response::ready(Err(error)),
            Some(Loss::Garbled) => garbled(inner.submit(request)),
            None if fate.refuse && is_any_delete => Response::ready(Err(limit_reached())),
            _ => inner.submit(request),
        };
        self.in_flight.push_back(InFlight {
            response,
            answer,
            delay: fate.delay,
            lost,
        });
    }

    pub(super) fn outage(&mut self) -> Duration {
        self.session.shared.plan.lock().outage(&mut self.random)
    }
}

/// Replaces the reply with an error if the store has carried out the request.
fn garbled(reply: Response) -> Response {
    Response::eager(async move {
        match reply.await {
            Ok(_) => Err(Error::Protocol("a garbled reply".to_owned())),
            refusal => refusal,
        }
    })
}

fn limit_reached() -> Error {
    Error::LimitReached {
        what: "deletes, by plan",
        limit: 0,
    }
}
