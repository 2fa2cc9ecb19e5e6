//! What a handler asks about its caller.

use tonic::Request;

use super::{Identity, Principal, Role};
use crate::fault::{Fault, Kind};
use crate::id::{Id, Workspace};

/// The verified caller of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller(Identity);

/// Marks an outgoing request as made for somebody; [`act_for`] sets it.
#[derive(Debug, Clone)]
pub struct OnBehalfOf(pub Identity);

/// Returns who is calling; the server's layer has verified it.
pub fn caller<T>(request: &Request<T>) -> Result<Caller, Fault> {
    request
        .extensions()
        .get::<Identity>()
        .cloned()
        .map(Caller)
        .ok_or_else(|| {
            Fault::new(
                Kind::Unauthenticated,
                "IDENTITY_MISSING",
                "kit",
                "the call has no identity",
            )
        })
}

/// Marks a request to another service as made for this caller.
pub fn act_for<T>(caller: &Caller, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request
        .extensions_mut()
        .insert(OnBehalfOf(caller.party().clone()));
    request
}

impl Caller {
    /// Returns a caller with this identity; the gateway and tests make them.
    pub fn new(identity: Identity) -> Self {
        Self(identity)
    }

    /// Returns the identity as it was signed.
    pub fn identity(&self) -> &Identity {
        &self.0
    }

    /// Returns who wants it: the one a service acts for, else the caller itself.
    pub fn party(&self) -> &Identity {
        match &self.0.on_behalf_of {
            Some(party) if self.0.role == Role::Service => party,
            _ => &self.0,
        }
    }

    /// Returns the one who wants it, for audit and ownership.
    pub fn principal(&self) -> &Principal {
        &self.party().principal
    }

    /// Returns the workspace the caller acts in.
    pub fn workspace(&self) -> Result<Id<Workspace>, Fault> {
        self.party().workspace.ok_or_else(|| {
            let message = "the call names no workspace: choose one, or use a key of one";
            Fault::new(Kind::Precondition, "WORKSPACE_MISSING", "kit", message)
        })
    }

    /// Tells whether the caller may touch what belongs to this workspace. Who may not is told
    /// that there is no such thing.
    pub fn owns(&self, workspace: Id<Workspace>) -> bool {
        self.is_service() || self.party().workspace == Some(workspace)
    }

    /// Tells whether a service calls for itself.
    pub fn is_service(&self) -> bool {
        self.0.role == Role::Service && self.0.on_behalf_of.is_none()
    }

    /// Requires a role of the one who wants it; a service that acts for itself may do anything.
    pub fn require(&self, role: Role) -> Result<(), Fault> {
        let party = self.party();
        if self.is_service() || party.role.covers(role) {
            return Ok(());
        }
        let message = format!("this needs the role {role}, the caller is {}", party.role);
        Err(Fault::new(Kind::Denied, "ROLE_TOO_LOW", "kit", message).with("role", role))
    }

    /// Requires a scope, where a key was narrowed to some: `runs:write`.
    pub fn require_scope(&self, scope: &str) -> Result<(), Fault> {
        let scopes = &self.party().scopes;
        if scopes.is_empty() || scopes.iter().any(|granted| grants(granted, scope)) {
            return Ok(());
        }
        let message = format!("this needs the scope {scope}, which the key lacks");
        Err(Fault::new(Kind::Denied, "SCOPE_MISSING", "kit", message).with("scope", scope))
    }

    /// Requires that one of our services calls, for itself or for somebody.
    pub fn require_service(&self) -> Result<(), Fault> {
        self.require_own(Role::Service)
    }

    /// Requires a worker, and returns its name.
    pub fn require_worker(&self) -> Result<&Principal, Fault> {
        let party = self.party();
        match party.role {
            Role::Worker => Ok(&party.principal),
            _ => self.require_own(Role::Worker).map(|()| &self.0.principal),
        }
    }

    /// Requires who runs this installation.
    pub fn require_operator(&self) -> Result<(), Fault> {
        self.require(Role::Operator)
    }

    fn require_own(&self, role: Role) -> Result<(), Fault> {
        if self.0.role == role {
            return Ok(());
        }
        let message = format!("only a {role} may call this, the caller is {}", self.0.role);
        Err(Fault::new(Kind::Denied, "ROLE_TOO_LOW", "kit", message).with("role", role))
    }
}

/// `runs:write` is granted by itself and by `runs:*`.
fn grants(granted: &str, wanted: &str) -> bool {
    granted == wanted
        || granted.strip_suffix('*').is_some_and(|domain| {
            domain.is_empty() || (domain.ends_with(':') && wanted.starts_with(domain))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::time::Timestamp;

    fn member(role: Role) -> Identity {
        let now = Timestamp::from_seconds(1);
        Identity::member(Id::new(now), Principal::User(Id::new(now)), role)
    }

    #[test]
    fn a_role_covers_those_below_it() {
        let caller = Caller::new(member(Role::Editor));
        assert!(caller.require(Role::Viewer).is_ok());
        assert!(caller.require(Role::Editor).is_ok());
        assert!(caller.require(Role::Admin).unwrap_err().is("ROLE_TOO_LOW"));
        assert!(caller.require_service().is_err());
        assert!(caller.require_operator().is_err());
        assert!(
            Caller::new(member(Role::Operator))
                .require(Role::Owner)
                .is_ok()
        );
        assert!(
            Caller::new(member(Role::Worker))
                .require(Role::Viewer)
                .is_err()
        );
        assert!(Caller::new(member(Role::Owner)).require_worker().is_err());
    }

    #[test]
    fn a_service_that_acts_for_somebody_may_do_no_more_than_they() {
        let party = member(Role::Viewer);
        let workspace = party.workspace.unwrap();
        let on_behalf_of = Some(Box::new(party));
        let caller = Caller::new(Identity {
            on_behalf_of,
            ..Identity::service("gateway")
        });
        assert!(caller.require(Role::Editor).is_err());
        assert!(caller.require_service().is_ok());
        assert!(caller.owns(workspace));
        assert!(!caller.owns(Id::new(Timestamp::from_seconds(2))));
        assert!(
            Caller::new(Identity::service("billing"))
                .require(Role::Owner)
                .is_ok()
        );
    }

    #[test]
    fn only_a_service_can_act_for_somebody() {
        let on_behalf_of = Some(Box::new(member(Role::Owner)));
        let caller = Caller::new(Identity {
            on_behalf_of,
            ..member(Role::Viewer)
        });
        assert!(caller.require(Role::Owner).is_err());
    }

    #[test]
    fn a_key_does_only_what_it_was_narrowed_to() {
        let scopes = vec!["runs:*".to_owned(), "models:read".to_owned()];
        let caller = Caller::new(Identity {
            scopes,
            ..member(Role::Owner)
        });
        assert!(caller.require_scope("runs:write").is_ok());
        assert!(caller.require_scope("models:read").is_ok());
        assert!(
            caller
                .require_scope("models:write")
                .unwrap_err()
                .is("SCOPE_MISSING")
        );
        assert!(
            Caller::new(member(Role::Owner))
                .require_scope("models:write")
                .is_ok()
        );
    }
}
