//! What the gateway decides: who may call what, and which pages may use a session.

use std::net::{IpAddr, Ipv6Addr};

use http::Method as Verb;
use kit::auth::Role;
use proto::Access;

use crate::contract::Method;
use crate::error::Error;

/// Decides whether a caller of this role may call an RPC.
pub fn admit(method: &Method, role: Role) -> Result<(), Error> {
    let is_admitted = match method.access {
        Access::Public => role.covers(method.role),
        Access::Worker => role == Role::Worker,
        Access::Operator => role == Role::Operator,
        Access::Service | Access::Unspecified => false,
    };
    if is_admitted {
        return Ok(());
    }
    let name = method.descriptor.name().to_owned();
    let role_name = role.to_string();
    let audience = match method.access {
        Access::Public if role.covers(Role::Viewer) => {
            return Err(Error::RoleTooLow {
                method: name,
                needed: method.role.to_string(),
                role: role_name,
            });
        }
        Access::Public => "members of a workspace",
        Access::Worker => "workers",
        Access::Operator => "the operator of the installation",
        Access::Service | Access::Unspecified => "services inside the fleet",
    };
    Err(Error::NotForCaller {
        method: name,
        audience,
        role: role_name,
    })
}

/// What a browser says about where a request comes from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The `origin` header.
    pub origin: Option<&'a str>,
    /// The host that was asked: the `host` header or the authority.
    pub host: Option<&'a str>,
    /// Whether the header is there that other sites' pages can't send unasked.
    pub has_own_header: bool,
}

/// Decides whether a session may be used: what changes something must come from our own pages.
pub fn admit_session(verb: &Verb, source: Source<'_>) -> Result<(), Error> {
    let is_safe = matches!(*verb, Verb::GET | Verb::HEAD | Verb::OPTIONS);
    if is_safe || source.has_own_header || is_same_origin(source) {
        Ok(())
    } else {
        Err(Error::CrossOrigin)
    }
}

/// Tells whether the origin names the host that was asked; which scheme is a proxy's affair.
pub fn is_same_origin(source: Source<'_>) -> bool {
    let (Some(origin), Some(host)) = (source.origin, source.host) else {
        return false;
    };
    match origin.split_once("://") {
        Some(("http", name)) => without_port(name, ":80") == without_port(host, ":80"),
        Some(("https", name)) => without_port(name, ":443") == without_port(host, ":443"),
        _ => false,
    }
}

fn without_port(name: &str, port: &str) -> String {
    name.strip_suffix(port).unwrap_or(name).to_ascii_lowercase()
}

/// Returns what counts as one address: networks give a household 2^64 of the longer kind.
pub fn address_group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(long) => {
            let network = long.to_bits() & !u128::from(u64::MAX);
            IpAddr::V6(Ipv6Addr::from_bits(network))
        }
        short => short,
    }
}

/// Tells whether a fact's type is asked for: by name, or by a prefix that ends in a dot.
pub fn is_asked_for(types: &[String], name: &str) -> bool {
    types.is_empty()
        || types
            .iter()
            .any(|wanted| wanted == name || (wanted.ends_with('.') && name.starts_with(wanted)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contract::Contract;

    const LADDER: [Role; 4] = [Role::Viewer, Role::Editor, Role::Admin, Role::Owner];

    #[test]
    fn every_rpc_admits_exactly_those_it_is_for() {
        for method in Contract::get().methods() {
            let members = LADDER.map(|role| admit(method, role).is_ok());
            let others = [Role::Worker, Role::Operator, Role::Service];
            let others = others.map(|role| admit(method, role).is_ok());
            match method.access {
                Access::Public => {
                    let least = LADDER.iter().position(|role| *role == method.role);
                    let expected = [0, 1, 2, 3].map(|place| place >= least.unwrap());
                    assert_eq!(members, expected, "{}", method.path);
                    assert_eq!(others, [false, true, false], "{}", method.path);
                }
                Access::Worker => assert_eq!((members, others), ([false; 4], [true, false, false])),
                Access::Operator => {
                    assert_eq!((members, others), ([false; 4], [false, true, false]));
                }
                Access::Service | Access::Unspecified => {
                    assert_eq!(
                        (members, others),
                        ([false; 4], [false; 3]),
                        "{}",
                        method.path
                    );
                }
            }
        }
    }

    #[test]
    fn a_session_changes_things_only_from_our_own_pages() {
        let from = |origin, has_own_header| Source {
            origin,
            host: Some("Vision.Example:8443"),
            has_own_header,
        };
        let post = |source| admit_session(&Verb::POST, source).is_ok();
        assert!(post(from(Some("https://vision.example:8443"), false)));
        assert!(post(from(None, true)));
        assert!(!post(from(None, false)));
        assert!(!post(from(Some("null"), false)));
        assert!(!post(from(Some("https://vision.example"), false)));
        assert!(!post(from(Some("https://evil.example:8443"), false)));
        assert!(!post(from(Some("https://vision.example:8443.evil"), false)));
        assert!(admit_session(&Verb::GET, from(Some("https://evil.example"), false)).is_ok());
        let plain = Source {
            host: Some("vision.example"),
            ..from(Some("https://vision.example:443"), false)
        };
        assert!(post(plain));
    }

    #[test]
    fn addresses_of_one_network_count_as_one() {
        let group = |text: &str| address_group(text.parse().unwrap()).to_string();
        assert_eq!(group("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::");
        assert_eq!(group("::ffff:192.0.2.7"), "192.0.2.7");
    }

    #[test]
    fn a_type_is_asked_for_by_name_or_prefix() {
        let types = [
            "fovea.runs.v1.RunQueued".to_owned(),
            "fovea.models.".to_owned(),
        ];
        assert!(is_asked_for(&[], "anything"));
        assert!(is_asked_for(&types, "fovea.runs.v1.RunQueued"));
        assert!(is_asked_for(&types, "fovea.models.v1.ModelCreated"));
        assert!(!is_asked_for(&types, "fovea.runs.v1.RunQueuedAgain"));
        assert!(!is_asked_for(&types, "fovea.runs.v1.RunPaused"));
    }
}
