//! Configuration: `fovea.toml` with one section a service, and the environment, which wins:
//! `FOVEA_BILLING__HOLD_TTL=15m` sets `hold_ttl` in `[billing]`.
//!
//! A section is a struct that derives `Default`, `Serialize` and `Deserialize` with
//! `#[serde(default)]`; its defaults also say which keys exist. Unknown keys are errors, and all
//! problems are told at once.

mod fleet;
mod values;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use figment::providers::{Format, Serialized, Toml};
use figment::value::{Dict, Map, Value};
use figment::{Figment, Metadata, Profile, Provider};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::fault::{Fault, Kind};

pub use fleet::{Addresses, FirstPort, Fleet, Listen, LogFormat, Metrics, Ports, SERVICES};
pub use values::{
    Secret, duration, format_duration, format_size, parse_duration, parse_size, size,
};

/// The file that is read from the working folder when none is named.
pub const FILE: &str = "fovea.toml";
const ENVIRONMENT_PREFIX: &str = "FOVEA_";
const SECTION_SEPARATOR: &str = "__";
const FLEET: &str = "fleet";

/// Returns a variable of the environment that is no configuration key, such as `FOVEA_NATS_SERVER`.
#[expect(
    clippy::disallowed_methods,
    reason = "this module is where the environment is read"
)]
pub fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// All that was configured, and where each value came from.
#[derive(Clone)]
pub struct Config {
    figment: Figment,
    fleet: Fleet,
}

/// One thing that is wrong with the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key: `billing.hold_ttl`.
    pub key: String,
    /// Where the value stands: a file or a variable.
    pub origin: String,
    /// The rule it breaks.
    pub rule: String,
}

/// Everything that is wrong with the configuration; never empty as an error.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

/// One effective value, for `fovea config`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The key: `billing.hold_ttl`.
    pub key: String,
    /// The value as text; secrets as `***`.
    pub value: String,
    /// Where it came from: `default`, a file or a variable.
    pub origin: String,
}

impl Config {
    /// Reads `file`, or `fovea.toml` in the working folder where there is one, and the
    /// environment.
    pub fn load(file: Option<&Path>) -> Result<Self, Problems> {
        Self::load_with(file, [])
    }

    /// Reads the same, with variables that win over those of the environment.
    pub fn load_with(
        file: Option<&Path>,
        overrides: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Problems> {
        let path = match file {
            Some(path) if !path.is_file() => {
                return Err(Problems::one("", path.display(), "there is no such file"));
            }
            Some(path) => Some(path.to_owned()),
            None => Some(PathBuf::from(FILE)).filter(|path| path.is_file()),
        };
        let text = match &path {
            Some(path) => std::fs::read_to_string(path)
                .map_err(|error| Problems::one("", path.display(), error))?,
            None => String::new(),
        };
        let name = path.map_or_else(|| FILE.to_owned(), |path| path.display().to_string());
        let mut variables: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| {
                Some((
                    name.into_string().ok()?,
                    text_or_nothing(&value)?.to_owned(),
                ))
            })
            .collect();
        variables.extend(overrides);
        Self::from_text(&name, &text, variables)
    }

    /// Reads the text of a file called `name`, and these variables.
    pub fn from_text(
        name: &str,
        text: &str,
        variables: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Problems> {
        // The parser of figment names no line: this one does.
        if let Err(error) = text.parse::<toml::Table>() {
            return Err(Problems::one("", name, error.to_string().trim_end()));
        }
        let mut figment = Figment::from(Named {
            name: name.to_owned(),
            text: text.to_owned(),
        });
        let mut variables: Vec<_> = variables.into_iter().filter_map(Variable::new).collect();
        variables.sort_by(|a, b| a.name.cmp(&b.name));
        for variable in variables {
            figment = figment.merge(variable);
        }

        let mut problems = Problems::default();
        let given = figment
            .data()
            .ok()
            .and_then(|mut data| data.remove(&Profile::Default));
        for (section, value) in given.iter().flatten() {
            if section != FLEET && !SERVICES.contains(&section.as_str()) {
                let known = format!(
                    "no such section; there are {FLEET}, {}",
                    SERVICES.join(", ")
                );
                problems.add(section, origin_of(&figment, section), known);
            } else if value.as_dict().is_none() {
                problems.add(
                    section,
                    origin_of(&figment, section),
                    "is a section, not a value",
                );
            }
        }
        let fleet = problems.take(read::<Fleet>(&figment, FLEET));
        match fleet {
            Some(fleet) if problems.0.is_empty() => Ok(Self { figment, fleet }),
            _ => Err(problems),
        }
    }

    /// Returns what all services share.
    pub fn fleet(&self) -> &Fleet {
        &self.fleet
    }

    /// Reads one service's section.
    pub fn section<T>(&self, name: &str) -> Result<T, Problems>
    where
        T: Default + Serialize + DeserializeOwned,
    {
        read(&self.figment, name)
    }

    /// Tells whether nobody set this key: `fleet.nats_url`.
    pub fn is_default(&self, key: &str) -> bool {
        self.figment.find_value(key).is_err()
    }

    /// Returns the shared section's values with their origins.
    pub fn fleet_settings(&self) -> Vec<Setting> {
        self.settings(FLEET, &self.fleet)
    }

    /// Returns a section's values with their origins.
    pub fn settings<T: Serialize>(&self, section: &str, values: &T) -> Vec<Setting> {
        let mut leaves = Vec::new();
        if let Ok(value) = Value::serialize(values) {
            collect_leaves(section, &value, &mut leaves);
        }
        let origin = |key: &str| match self.figment.find_value(key) {
            Ok(_) => origin_of(&self.figment, key),
            Err(_) if self.figment.find_value(&format!("{key}_file")).is_ok() => {
                origin_of(&self.figment, &format!("{key}_file"))
            }
            Err(_) => "default".to_owned(),
        };
        leaves
            .into_iter()
            .map(|(key, value)| Setting {
                origin: origin(&key),
                value: show(&value),
                key,
            })
            .collect()
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Config")
            .field("fleet", &self.fleet)
            .finish_non_exhaustive()
    }
}

impl Problems {
    fn one(key: &str, origin: impl fmt::Display, rule: impl fmt::Display) -> Self {
        let mut problems = Self::default();
        problems.add(key, origin.to_string(), rule);
        problems
    }

    /// Adds a problem that a service found in its own section.
    pub fn add(&mut self, key: &str, origin: impl Into<String>, rule: impl fmt::Display) {
        let (key, origin) = (key.to_owned(), origin.into());
        self.0.push(Problem {
            key,
            origin,
            rule: rule.to_string(),
        });
    }

    /// Keeps the problems of one reading and returns its value, so that many can be read first.
    pub fn take<T>(&mut self, reading: Result<T, Self>) -> Option<T> {
        match reading {
            Ok(value) => Some(value),
            Err(problems) => {
                self.0.extend(problems.0);
                None
            }
        }
    }

    /// Returns an error if there is any problem.
    pub fn check(self) -> Result<(), Self> {
        if self.0.is_empty() { Ok(()) } else { Err(self) }
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        let noun = if count == 1 { "problem" } else { "problems" };
        write!(out, "the configuration has {count} {noun}:")?;
        for Problem { key, origin, rule } in &self.0 {
            let rule = rule.replace('\n', "\n    ");
            match key.as_str() {
                "" => write!(out, "\n  {origin}: {rule}")?,
                key => write!(out, "\n  {key} ({origin}): {rule}")?,
            }
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

impl From<Problems> for Fault {
    fn from(problems: Problems) -> Self {
        Fault::new(
            Kind::Invalid,
            "CONFIGURATION_INVALID",
            "kit",
            problems.to_string(),
        )
    }
}

/// Reads a section one given key at a time, so that one bad value does not hide the next.
fn read<T>(figment: &Figment, section: &str) -> Result<T, Problems>
where
    T: Default + Serialize + DeserializeOwned,
{
    let mut problems = Problems::default();
    let defaults = Value::serialize(T::default()).map_err(|error| {
        Problems::one(
            section,
            "default",
            format!("the defaults can't be written: {error}"),
        )
    })?;
    let mut given = Vec::new();
    if let Ok(value) = figment.find_value(section) {
        collect_given("", &value, &defaults, &mut given);
    }

    let mut merged = Figment::new();
    for (path, value) in &given {
        let key = format!("{section}.{path}");
        let origin = origin_of(figment, &key);
        let (path, value) = match defaults.find_ref(path) {
            Some(_) => (path.as_str(), value.clone()),
            None => match from_file(path, value, &defaults) {
                Some(Ok((path, value))) if given.iter().any(|(other, _)| other == path) => {
                    let rule = format!("{path} is set too: keep one of the two");
                    problems.add(&key, origin, rule);
                    drop(value);
                    continue;
                }
                Some(Ok((path, value))) => (path, value),
                Some(Err(error)) => {
                    problems.add(&key, origin, error);
                    continue;
                }
                None => {
                    problems.add(&key, origin, unknown(path, &defaults));
                    continue;
                }
            },
        };
        let one = Figment::from(Serialized::default(path, &value));
        if let Err(error) = one.extract_lossy::<T>() {
            problems.add(&key, origin, rules_of(error));
            continue;
        }
        merged = merged.merge(Serialized::default(path, &value));
    }
    problems.check()?;
    merged
        .extract_lossy()
        .map_err(|error| Problems::one(section, "default", rules_of(error)))
}

/// Returns `x` and the text of the file, where `path` is `x_file` and `x` is a known key.
fn from_file<'a>(
    path: &'a str,
    value: &Value,
    defaults: &Value,
) -> Option<Result<(&'a str, Value), String>> {
    let target = path
        .strip_suffix("_file")
        .filter(|path| defaults.find_ref(path).is_some())?;
    let Some(file) = value.as_str() else {
        return Some(Err("must be the path of a file".to_owned()));
    };
    Some(match std::fs::read_to_string(file) {
        Ok(text) => Ok((target, Value::from(text.trim_end()))),
        Err(error) => Err(format!("{file}: {error}")),
    })
}

fn unknown(path: &str, defaults: &Value) -> String {
    let (parent, _) = path.rsplit_once('.').unwrap_or(("", path));
    let table = if parent.is_empty() {
        Some(defaults)
    } else {
        defaults.find_ref(parent)
    };
    let keys = table
        .and_then(Value::as_dict)
        .map(|dict| dict.keys().cloned().collect::<Vec<_>>());
    format!(
        "no such key; there are {}",
        keys.unwrap_or_default().join(", ")
    )
}

fn rules_of(error: figment::Error) -> String {
    error
        .into_iter()
        .map(|error| error.kind.to_string())
        .collect::<Vec<_>>()
        .join("; ")
}

fn origin_of(figment: &Figment, key: &str) -> String {
    figment
        .find_metadata(key)
        .map_or_else(|| "default".to_owned(), |from| from.name.to_string())
}

/// Lists what was given down to the depth at which the defaults stop being tables.
fn collect_given(path: &str, value: &Value, defaults: &Value, leaves: &mut Vec<(String, Value)>) {
    match (value.as_dict(), defaults.as_dict()) {
        (Some(given), Some(known)) if path.is_empty() || !known.is_empty() => {
            for (key, value) in given {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                let known = known.get(key).cloned().unwrap_or_else(|| Value::from(""));
                collect_given(&path, value, &known, leaves);
            }
        }
        _ => leaves.push((path.to_owned(), value.clone())),
    }
}

fn collect_leaves(path: &str, value: &Value, leaves: &mut Vec<(String, Value)>) {
    match value.as_dict() {
        Some(dict) => {
            for (key, value) in dict {
                collect_leaves(&format!("{path}.{key}"), value, leaves);
            }
        }
        None => leaves.push((path.to_owned(), value.clone())),
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::String(_, text) => text.clone(),
        Value::Char(_, letter) => letter.to_string(),
        Value::Bool(_, flag) => flag.to_string(),
        Value::Num(_, number) => match (number.to_i128(), number.to_u128(), number.to_f64()) {
            (Some(number), ..) => number.to_string(),
            (None, Some(number), _) => number.to_string(),
            (None, None, Some(number)) => number.to_string(),
            (None, None, None) => String::new(),
        },
        Value::Empty(..) => "(none)".to_owned(),
        Value::Array(_, items) => items.iter().map(show).collect::<Vec<_>>().join(", "),
        Value::Dict(_, dict) => {
            let pairs = dict
                .iter()
                .map(|(key, value)| format!("{key}={}", show(value)));
            pairs.collect::<Vec<_>>().join(", ")
        }
    }
}

fn text_or_nothing(value: &OsStr) -> Option<&str> {
    value.to_str().filter(|value| !value.is_empty())
}

fn list(text: &str) -> Option<Value> {
    let table = text
        .trim_start()
        .starts_with('[')
        .then(|| format!("list = {text}"))?;
    let table = table.parse::<toml::Table>().ok()?;
    Value::serialize(table.get("list")?).ok()
}

/// The text of a file under its own name, also where it was never a file.
struct Named {
    name: String,
    text: String,
}

impl Provider for Named {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        Toml::string(&self.text).data()
    }
}

/// One variable of the environment, so that a value's origin is its very name.
struct Variable {
    name: String,
    path: Vec<String>,
    value: String,
}

impl Variable {
    /// Returns `None` for what is no key: only names with a section and `__` are.
    fn new((name, value): (String, String)) -> Option<Self> {
        let rest = name.strip_prefix(ENVIRONMENT_PREFIX)?;
        let path: Vec<_> = rest
            .split(SECTION_SEPARATOR)
            .map(str::to_ascii_lowercase)
            .collect();
        (path.len() > 1).then_some(Self { name, path, value })
    }
}

impl Provider for Variable {
    fn metadata(&self) -> Metadata {
        Metadata::named(self.name.clone())
    }

    fn data(&self) -> Result<Map<Profile, Dict>, figment::Error> {
        // A list is written as in TOML; all else stays text, which reading turns into what the
        // key wants, so that a password of digits is no number.
        let value = list(&self.value).unwrap_or_else(|| Value::from(self.value.as_str()));
        let mut nested = value;
        for key in self.path[1..].iter().rev() {
            nested = Value::from(BTreeMap::from([(key.clone(), nested)]));
        }
        let section = self.path[0].clone();
        Ok(Map::from([(
            Profile::Default,
            Dict::from([(section, nested)]),
        )]))
    }
}
