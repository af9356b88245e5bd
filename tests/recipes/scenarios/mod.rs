//! Scenarios: several clients do a job under locks, on a resource that checks tokens. The test checks the job's overall
//! outcome.

mod api_quota;
mod arrivals;
mod batch_jobs;
mod candidates;
mod processes;
mod report_cache;
mod schedule;
mod silence;
mod transfer;
