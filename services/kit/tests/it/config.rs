//! Configuration: one file, the environment, all problems at once.

use std::time::Duration;

use kit::config::{Config, Secret};
use kit::fault::Fault;
use serde::{Deserialize, Serialize};

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Billing {
    #[serde(with = "kit::config::duration")]
    hold_ttl: Duration,
    #[serde(with = "kit::config::size")]
    statement_bytes_max: u64,
    attempts: u32,
    provider: Option<String>,
    secret: Option<Secret<String>>,
    plans: Vec<String>,
    limits: Limits,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Limits {
    calls: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { calls: 10 }
    }
}

impl Default for Billing {
    fn default() -> Self {
        Self {
            hold_ttl: Duration::from_secs(900),
            statement_bytes_max: 1 << 20,
            attempts: 3,
            provider: None,
            secret: None,
            plans: vec!["free".to_owned()],
            limits: Limits::default(),
        }
    }
}

fn load(text: &str, variables: &[(&str, &str)]) -> Result<Config, kit::config::Problems> {
    let variables = variables
        .iter()
        .map(|(name, value)| (name.to_string(), value.to_string()));
    Config::from_text("fovea.toml", text, variables)
}

#[test]
fn nothing_configured_means_the_defaults() {
    let config = load("", &[("FOVEA_NATS_SERVER", "/x"), ("HOME", "/y")]).unwrap();
    assert_eq!(
        config.section::<Billing>("billing").unwrap(),
        Billing::default()
    );
    assert_eq!(config.fleet().listen.get("billing").unwrap().port(), 7404);
    assert_eq!(config.fleet().metrics.get("worker").unwrap().port(), 7417);
    assert_eq!(
        config.fleet().service_url("accounts").unwrap(),
        "http://127.0.0.1:7401"
    );
    assert!(config.is_default("fleet.nats_url"));
}

#[test]
fn the_environment_wins_and_each_value_knows_where_it_came_from() {
    let text = "[billing]\nhold_ttl = '1m'\nattempts = 5\n[fleet.listen]\nbilling = '0.0.0.0:1'";
    let variables = [
        ("FOVEA_BILLING__HOLD_TTL", "30s"),
        ("FOVEA_BILLING__STATEMENT_BYTES_MAX", "64MiB"),
        ("FOVEA_BILLING__LIMITS__CALLS", "7"),
        ("FOVEA_BILLING__PROVIDER", "12345"),
        ("FOVEA_BILLING__SECRET", "777"),
        ("FOVEA_BILLING__PLANS", "['pro', 'team']"),
        ("FOVEA_FLEET__LISTEN__BILLING", "127.0.0.1:9"),
    ];
    let config = load(text, &variables).unwrap();
    let billing: Billing = config.section("billing").unwrap();
    assert_eq!(billing.hold_ttl, Duration::from_secs(30));
    assert_eq!(billing.statement_bytes_max, 64 << 20);
    assert_eq!(billing.limits.calls, 7);
    assert_eq!(billing.provider.as_deref(), Some("12345"));
    assert_eq!(billing.secret.as_ref().unwrap().expose(), "777");
    assert_eq!(billing.plans, ["pro", "team"]);
    assert_eq!(config.fleet().listen.billing.port(), 9);
    assert_eq!(config.fleet().listen.accounts.port(), 7401);

    let settings = config.settings("billing", &billing);
    let shown = |key: &str| {
        let setting = settings.iter().find(|setting| setting.key == key).unwrap();
        (setting.value.clone(), setting.origin.clone())
    };
    let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
    assert_eq!(
        shown("billing.hold_ttl"),
        pair("30s", "FOVEA_BILLING__HOLD_TTL")
    );
    assert_eq!(shown("billing.attempts"), pair("5", "fovea.toml"));
    assert_eq!(
        shown("billing.secret"),
        pair("***", "FOVEA_BILLING__SECRET")
    );
    let plain = load("", &[]).unwrap();
    let settings = plain.settings("billing", &Billing::default());
    assert!(settings.iter().all(|setting| setting.origin == "default"));
}

#[test]
fn all_problems_are_told_at_once() {
    let text = "[billing]\nhold_ttl = 'soon'\nattempts = -1\ncolour = 'red'\n\
                [billing.limits]\ncals = 1\n[fleet]\nlog_format = 'xml'";
    let config = load(text, &[("FOVEA_BILLING__STATEMENT_BYTES_MAX", "big")]);
    let problems = config.unwrap_err().to_string();
    assert!(
        problems.contains("fleet.log_format (fovea.toml)"),
        "{problems}"
    );

    let text = text.replace("xml", "json");
    let config = load(&text, &[("FOVEA_BILLING__STATEMENT_BYTES_MAX", "big")]).unwrap();
    let problems = config.section::<Billing>("billing").unwrap_err();
    let text = problems.to_string();
    assert_eq!(problems.0.len(), 5, "{text}");
    for line in [
        "billing.hold_ttl (fovea.toml): 'soon' is not a duration",
        "billing.attempts (fovea.toml): ",
        "billing.colour (fovea.toml): no such key; there are attempts, hold_ttl",
        "billing.limits.cals (fovea.toml): no such key; there are calls",
        "billing.statement_bytes_max (FOVEA_BILLING__STATEMENT_BYTES_MAX): 'big' is not a size",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    assert!(Fault::from(problems).is("CONFIGURATION_INVALID"));
}

#[test]
fn an_unknown_section_is_a_problem() {
    let problems = load("[biling]\nx = 1\n[fleet]\ncolour = 1", &[]).unwrap_err();
    let text = problems.to_string();
    assert!(
        text.contains("biling (fovea.toml): no such section; there are fleet"),
        "{text}"
    );
    assert!(
        text.contains("fleet.colour (fovea.toml): no such key"),
        "{text}"
    );
}

#[test]
fn a_file_that_is_no_toml_names_its_line() {
    let text = load("[fleet]\ndata = \n", &[]).unwrap_err().to_string();
    assert!(
        text.contains("fovea.toml: TOML parse error at line 2"),
        "{text}"
    );
}

#[test]
fn a_secret_may_stand_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("secret");
    std::fs::write(&path, "hunter2\n").unwrap();
    let path = path.to_str().unwrap();
    let config = load("", &[("FOVEA_BILLING__SECRET_FILE", path)]).unwrap();
    let billing: Billing = config.section("billing").unwrap();
    assert_eq!(billing.secret.as_ref().unwrap().expose(), "hunter2");
    let settings = config.settings("billing", &billing);
    let secret = settings
        .iter()
        .find(|setting| setting.key == "billing.secret")
        .unwrap();
    assert_eq!(secret.origin, "FOVEA_BILLING__SECRET_FILE");
    let both = [
        ("FOVEA_BILLING__SECRET_FILE", path),
        ("FOVEA_BILLING__SECRET", "x"),
    ];
    assert!(
        load("", &both)
            .unwrap()
            .section::<Billing>("billing")
            .is_err()
    );
    let missing = load("[billing]\nsecret_file = '/no/such/file'", &[]).unwrap();
    let text = missing
        .section::<Billing>("billing")
        .unwrap_err()
        .to_string();
    assert!(text.contains("/no/such/file"), "{text}");
}
