//! Scenarios: several clients do a job under locks, at a resource that checks tokens, and the job's outcome is
//! checked as a whole.

mod api_quota;
mod arrivals;
mod batch_jobs;
mod candidates;
mod processes;
mod report_cache;
mod schedule;
mod silence;
mod transfer;
