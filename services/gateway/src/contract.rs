//! The contract as the gateway reads it: every RPC with its owner, who may call it, and its REST
//! bindings. All of it comes from the descriptors, but for the one table of owners.

use std::collections::HashMap;
use std::sync::LazyLock;

use http::Method as Verb;
use kit::auth::Role;
use prost_reflect::{DynamicMessage, MessageDescriptor, MethodDescriptor, Value};
use proto::Access;

use crate::http::template::Template;

/// Which service answers the RPCs of a package.
const OWNERS: &[(&str, &str)] = &[
    ("fovea.accounts.v1", "accounts"),
    ("fovea.billing.v1", "billing"),
    ("fovea.datasets.v1", "datasets"),
    ("fovea.endpoints.v1", "inference"),
    ("fovea.events.v1", crate::NAME),
    ("fovea.fleet.v1", "scheduler"),
    ("fovea.jobs.v1", "scheduler"),
    ("fovea.models.v1", "projects"),
    ("fovea.projects.v1", "projects"),
    ("fovea.runs.v1", "projects"),
];

/// One RPC of the contract.
#[derive(Debug)]
pub struct Method {
    /// The path of its gRPC call: `/fovea.runs.v1.RunService/StartRun`.
    pub path: String,
    /// The service that answers it.
    pub owner: &'static str,
    /// Who may call it.
    pub access: Access,
    /// The least role of a public caller.
    pub role: Role,
    /// The RPC's descriptor.
    pub descriptor: MethodDescriptor,
    /// Where REST offers it; empty for what is gRPC only.
    pub bindings: Vec<Binding>,
}

/// One way to call an RPC by REST.
#[derive(Debug)]
pub struct Binding {
    /// The HTTP method.
    pub verb: Verb,
    /// The path.
    pub template: Template,
    /// Where the body's JSON goes.
    pub body: Body,
}

/// What the body of a REST call fills.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// There is none: what the path lacks comes from the query.
    Absent,
    /// All fields that the path does not name.
    Whole,
}

/// All RPCs, found by gRPC path or by HTTP method and path.
#[derive(Debug)]
pub struct Contract {
    methods: Vec<Method>,
    by_path: HashMap<String, usize>,
}

/// What the REST routes say to a method and a path.
#[derive(Debug)]
pub enum Found<'a> {
    /// This RPC, with the values of the path's variables by field name.
    Rpc(&'a Method, &'a Binding, Vec<(&'a str, String)>),
    /// The path exists under these methods only.
    OtherVerbs(Vec<Verb>),
    /// No such path.
    Nothing,
}

static CONTRACT: LazyLock<Contract> = LazyLock::new(Contract::read);

impl Contract {
    /// Returns the contract of this build.
    pub fn get() -> &'static Self {
        &CONTRACT
    }

    /// Returns every RPC.
    pub fn methods(&self) -> &[Method] {
        &self.methods
    }

    /// Returns the RPC at a gRPC path.
    pub fn rpc(&self, path: &str) -> Option<&Method> {
        self.by_path.get(path).map(|index| &self.methods[*index])
    }

    /// Returns the RPC behind a REST call.
    pub fn rest<'a>(&'a self, verb: &Verb, path: &str) -> Found<'a> {
        let mut others = Vec::new();
        for method in &self.methods {
            for binding in &method.bindings {
                let Some(values) = binding.template.matches(path) else {
                    continue;
                };
                if binding.verb == *verb {
                    return Found::Rpc(method, binding, values);
                }
                others.push(binding.verb.clone());
            }
        }
        if others.is_empty() {
            Found::Nothing
        } else {
            others.sort_by(|a, b| a.as_str().cmp(b.as_str()));
            others.dedup();
            Found::OtherVerbs(others)
        }
    }

    fn read() -> Self {
        let services = proto::pool().services();
        let methods: Vec<Method> = services
            .flat_map(|service| service.methods().collect::<Vec<_>>())
            .map(Method::read)
            .collect();
        let by_path = methods
            .iter()
            .enumerate()
            .map(|(index, method)| (method.path.clone(), index))
            .collect();
        Self { methods, by_path }
    }
}

impl Method {
    fn read(descriptor: MethodDescriptor) -> Self {
        let service = descriptor.parent_service();
        let owner = OWNERS
            .iter()
            .find(|(package, _)| *package == service.package_name())
            .map(|(_, owner)| *owner)
            .expect("invariant: every package of the contract has an owner");
        Self {
            path: format!("/{}/{}", service.full_name(), descriptor.name()),
            owner,
            access: proto::access(&descriptor),
            role: role(&descriptor),
            bindings: bindings(&descriptor),
            descriptor,
        }
    }

    /// Returns the domain of the RPC: `runs` for `fovea.runs.v1`.
    pub fn domain(&self) -> &str {
        self.path.split('.').nth(1).unwrap_or_default()
    }

    /// Returns the message it takes.
    pub fn input(&self) -> MessageDescriptor {
        self.descriptor.input()
    }

    /// Returns the message it answers with.
    pub fn output(&self) -> MessageDescriptor {
        self.descriptor.output()
    }

    /// Tells whether one message goes in and one comes out.
    pub fn is_unary(&self) -> bool {
        !self.descriptor.is_client_streaming() && !self.descriptor.is_server_streaming()
    }
}

fn role(descriptor: &MethodDescriptor) -> Role {
    let name = proto::role(descriptor);
    name.parse()
        .unwrap_or_else(|error| panic!("invariant: {}: {error}", descriptor.full_name()))
}

/// Reads the `google.api.http` option with its additional bindings.
fn bindings(method: &MethodDescriptor) -> Vec<Binding> {
    let Some(extension) = proto::pool().get_extension_by_name("google.api.http") else {
        return Vec::new();
    };
    let options = method.options();
    if !options.has_extension(&extension) {
        return Vec::new();
    }
    let option = options.get_extension(&extension);
    let rule = option
        .as_message()
        .expect("invariant: google.api.http is a message");
    let mut bindings = vec![binding(rule)];
    if let Some(more) = rule.get_field_by_name("additional_bindings") {
        let rules = more.as_list().unwrap_or_default().iter();
        bindings.extend(rules.filter_map(Value::as_message).map(binding));
    }
    bindings
}

fn binding(rule: &DynamicMessage) -> Binding {
    let verbs = [
        ("get", Verb::GET),
        ("put", Verb::PUT),
        ("post", Verb::POST),
        ("delete", Verb::DELETE),
        ("patch", Verb::PATCH),
    ];
    let text = |field: &str| {
        let value = rule.get_field_by_name(field);
        value.and_then(|value| value.as_str().map(str::to_owned))
    };
    let (verb, template) = verbs
        .into_iter()
        .find_map(|(field, verb)| {
            text(field)
                .filter(|path| !path.is_empty())
                .map(|path| (verb, path))
        })
        .expect("invariant: an http rule has a pattern");
    let body = match text("body").as_deref() {
        None | Some("") => Body::Absent,
        Some("*") => Body::Whole,
        Some(other) => panic!("invariant: '{other}' is no body this gateway knows; write '*'"),
    };
    Binding {
        verb,
        template: Template::parse(&template)
            .unwrap_or_else(|error| panic!("invariant: path template '{template}': {error}")),
        body,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unary_rpc_for_people_has_a_rest_binding_and_no_other_has() {
        for method in Contract::get().methods() {
            let for_people = matches!(method.access, Access::Public | Access::Operator);
            assert_eq!(
                !method.bindings.is_empty(),
                for_people && method.is_unary(),
                "{}",
                method.path
            );
        }
    }

    #[test]
    fn no_two_rpcs_answer_the_same_call() {
        let mut seen = HashMap::new();
        for method in Contract::get().methods() {
            for binding in &method.bindings {
                let shape = (binding.verb.to_string(), binding.template.shape());
                let before = seen.insert(shape, &method.path);
                assert_eq!(before, None, "{}", method.path);
            }
        }
    }

    #[test]
    fn path_variables_are_text_fields_of_the_request() {
        for method in Contract::get().methods() {
            for variable in method.bindings.iter().flat_map(|b| b.template.variables()) {
                let field = method.input().get_field_by_name(variable);
                let field =
                    field.unwrap_or_else(|| panic!("{} has no field '{variable}'", method.path));
                assert_eq!(field.kind(), prost_reflect::Kind::String, "{variable}");
                assert!(!field.is_list());
            }
        }
    }

    #[test]
    fn a_verb_after_a_colon_is_another_rpc() {
        let contract = Contract::get();
        let name = |verb: Verb, path: &str| match contract.rest(&verb, path) {
            Found::Rpc(method, ..) => method.descriptor.name().to_owned(),
            Found::OtherVerbs(verbs) => format!("{verbs:?}"),
            Found::Nothing => "nothing".to_owned(),
        };
        assert_eq!(name(Verb::GET, "/v1/runs/run_1"), "GetRun");
        assert_eq!(name(Verb::POST, "/v1/runs/run_1:stop"), "StopRun");
        assert_eq!(name(Verb::GET, "/v1/runs:compare"), "CompareRuns");
        assert_eq!(name(Verb::POST, "/v1/runs:estimate"), "EstimateRun");
        assert_eq!(name(Verb::PUT, "/v1/runs"), "[GET, POST]");
        assert_eq!(name(Verb::GET, "/v1/runs/run_1:fly"), "nothing");
    }
}
