//! How a command says that it failed: a sentence, or JSON, and an exit code that means something.

use std::process::ExitCode;

use kit::fault::{Fault, Kind};

use crate::output;

/// What an exit code means; 2 is clap's, for arguments that don't parse.
const FAILED: u8 = 1;
const INVALID: u8 = 2;
const NOT_FOUND: u8 = 3;
const DENIED: u8 = 4;
const REFUSED: u8 = 5;
const UNAVAILABLE: u8 = 6;

/// Reports a failure and returns the exit code for it.
pub fn report(error: &anyhow::Error, is_json: bool) -> ExitCode {
    let told = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<tonic::Status>());
    let told = told.map(Fault::from_status);
    let own = error
        .chain()
        .find_map(|cause| cause.downcast_ref::<Fault>());
    let fault = told.as_ref().or(own);
    let code = fault.map_or(FAILED, |fault| code(fault.kind));
    if is_json {
        let (reason, message) = match fault {
            Some(fault) => (fault.reason.to_string(), fault.to_string()),
            None => ("FAILED".to_owned(), format!("{error:#}")),
        };
        let violations: Vec<_> = fault
            .iter()
            .flat_map(|fault| &fault.violations)
            .map(|violation| {
                serde_json::json!({"field": violation.field, "rule": violation.description})
            })
            .collect();
        let body = serde_json::json!({"error": {
            "reason": reason, "message": message, "violations": violations, "exit_code": code,
        }});
        output::line(body.to_string());
        return ExitCode::from(code);
    }
    match fault {
        Some(fault) => {
            output::remark(format!("error: {fault} [{}]", fault.reason));
            for violation in &fault.violations {
                output::remark(format!("  {}: {}", violation.field, violation.description));
            }
        }
        None => output::remark(format!("error: {error:#}")),
    }
    ExitCode::from(code)
}

fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Invalid => INVALID,
        Kind::NotFound => NOT_FOUND,
        Kind::Unauthenticated | Kind::Denied => DENIED,
        Kind::Conflict | Kind::Precondition | Kind::Exhausted => REFUSED,
        Kind::Unavailable | Kind::Timeout => UNAVAILABLE,
        Kind::Internal => FAILED,
    }
}
