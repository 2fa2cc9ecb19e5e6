//! Who may do what to whom: pure rules about workspaces, members and keys.

use kit::auth::{Principal, Role};
use kit::id::{Id, Key as KeyId, User, Workspace as WorkspaceId};
use kit::time::Timestamp;

use crate::error::Error;

/// The shortest and the longest slug, in characters.
pub const SLUG_CHARACTERS: (usize, usize) = (3, 40);
/// The longest name of a workspace, person or key, in characters.
pub const NAME_CHARACTERS_MAX: usize = 100;
/// The longest e-mail address, in characters.
pub const EMAIL_CHARACTERS_MAX: usize = 254;
/// The most people of one workspace.
pub const MEMBERS_MAX: i64 = 10_000;
/// The most keys of one workspace that aren't revoked.
pub const KEYS_MAX: i64 = 1000;

/// What a workspace pays for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plan {
    #[default]
    Free,
    Pro,
    Enterprise,
}

impl Plan {
    /// Returns the word that is stored and configured.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Free => "free",
            Self::Pro => "pro",
            Self::Enterprise => "enterprise",
        }
    }
}

impl std::str::FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Free, Self::Pro, Self::Enterprise];
        let found = all.into_iter().find(|plan| plan.as_str() == text);
        found.ok_or_else(|| format!("'{text}' is no plan: expected free, pro or enterprise"))
    }
}

/// The unit of ownership.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workspace {
    pub id: Id<WorkspaceId>,
    pub slug: String,
    pub name: String,
    pub plan: Plan,
    pub created_at: Timestamp,
}

/// A person in one workspace. Somebody in two workspaces is two of these, so that neither learns of the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub user: Id<User>,
    pub workspace: Id<WorkspaceId>,
    pub email: String,
    pub name: String,
    pub role: Role,
    pub joined_at: Timestamp,
}

/// A credential of a person, without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key {
    pub id: Id<KeyId>,
    pub workspace: Id<WorkspaceId>,
    /// Who made it or got it; it is worth no more than they are.
    pub user: Id<User>,
    pub name: String,
    pub role: Role,
    pub hint: String,
    pub created_at: Timestamp,
    pub revoked_at: Option<Timestamp>,
    /// To the minute.
    pub last_used_at: Option<Timestamp>,
}

/// Who acts, as the store knows them at this moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Actor {
    pub principal: Principal,
    pub workspace: Id<WorkspaceId>,
    /// None for a machine of ours.
    pub user: Option<Id<User>>,
    pub role: Role,
}

/// What would be left after a change, of what must never run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remaining {
    /// Owners of the workspace.
    pub owners: i64,
    /// Keys that may do what an owner may.
    pub owner_keys: i64,
    /// Keys of operators in the whole installation.
    pub operator_keys: i64,
}

/// Returns what a key may do now: no more than its user, whose role may have changed since it was made.
///
/// A worker's key is on no ladder. An operator's key is worth that only while its user is an owner.
pub fn effective_role(key: Role, user: Role) -> Role {
    match key {
        Role::Worker => Role::Worker,
        Role::Operator if user == Role::Owner => Role::Operator,
        key if user.covers(key) => key,
        _ => user,
    }
}

/// Checks that somebody may give away this role: never more than they have.
pub fn check_grant(actor: Role, role: Role) -> Result<(), Error> {
    let may = match role {
        // Machines that train are trusted with every workspace's data.
        Role::Worker | Role::Operator => actor == Role::Operator,
        Role::Service => false,
        role => actor.covers(role),
    };
    if may {
        Ok(())
    } else {
        Err(Error::RoleEscalation { actor, role })
    }
}

/// Checks that a role is one a person can have.
pub fn check_member_role(role: Role) -> Result<(), Error> {
    match role {
        Role::Viewer | Role::Editor | Role::Admin | Role::Owner => Ok(()),
        role => Err(Error::RoleInvalid {
            rule: format!("a person can't be {role}: expected viewer, editor, admin or owner"),
        }),
    }
}

/// Checks that `role` may be made of a member, and what would be left then.
pub fn check_set_role(
    actor: &Actor,
    member: &Member,
    role: Role,
    remaining: Remaining,
) -> Result<(), Error> {
    check_member_role(role)?;
    check_manages(actor, member)?;
    check_grant(actor.role, role)?;
    if member.role == Role::Owner && role != Role::Owner {
        check_remaining(remaining, true)?;
    }
    Ok(())
}

/// Checks that a member may be removed, and what would be left then.
pub fn check_remove(actor: &Actor, member: &Member, remaining: Remaining) -> Result<(), Error> {
    if actor.user != Some(member.user) {
        check_manages(actor, member)?;
    }
    check_remaining(remaining, member.role == Role::Owner)
}

/// Checks that a key may be revoked, and what would be left then.
pub fn check_revoke(actor: &Actor, key: &Key, remaining: Remaining) -> Result<(), Error> {
    let is_own = actor.user == Some(key.user);
    let covers = key.role == Role::Worker || actor.role.covers(key.role);
    if !is_own && !covers {
        return Err(Error::RoleEscalation {
            actor: actor.role,
            role: key.role,
        });
    }
    check_remaining(remaining, false)
}

/// Admins manage those below them; admins and owners are managed by owners.
fn check_manages(actor: &Actor, member: &Member) -> Result<(), Error> {
    let needed = if member.role.covers(Role::Admin) {
        Role::Owner
    } else {
        Role::Admin
    };
    if actor.role.covers(needed) {
        Ok(())
    } else {
        Err(Error::RoleEscalation {
            actor: actor.role,
            role: member.role,
        })
    }
}

fn check_remaining(remaining: Remaining, is_owner: bool) -> Result<(), Error> {
    if is_owner && remaining.owners < 1 {
        return Err(Error::LastOwner);
    }
    if remaining.operator_keys < 1 {
        return Err(Error::LastOperatorKey);
    }
    if remaining.owner_keys < 1 {
        return Err(Error::LastOwnerKey);
    }
    Ok(())
}

/// Checks a workspace's slug: lower case, digits and dashes, 3 to 40 characters, a letter or digit at both ends.
pub fn check_slug(slug: &str) -> Result<(), Error> {
    let (least, most) = SLUG_CHARACTERS;
    let is_plain = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_long_enough = (least..=most).contains(&slug.len());
    let is_allowed = slug
        .bytes()
        .all(|letter| is_plain(letter) || letter == b'-');
    let has_ends =
        slug.bytes().next().is_some_and(is_plain) && slug.bytes().next_back().is_some_and(is_plain);
    if is_long_enough && is_allowed && has_ends {
        Ok(())
    } else {
        Err(Error::SlugInvalid(shorten(slug)))
    }
}

/// Returns a name without space around it.
pub fn clean_name(field: &'static str, name: &str) -> Result<String, Error> {
    let name = name.trim();
    let length = name.chars().count();
    if length == 0 || length > NAME_CHARACTERS_MAX || name.chars().any(char::is_control) {
        return Err(Error::NameInvalid { field });
    }
    Ok(name.to_owned())
}

/// Returns an e-mail address in lower case. Whether anybody reads it is not known here.
pub fn clean_email(field: &'static str, email: &str) -> Result<String, Error> {
    let email = email.trim().to_lowercase();
    let is_sound = email.chars().count() <= EMAIL_CHARACTERS_MAX
        && !email
            .chars()
            .any(|letter| letter.is_whitespace() || letter.is_control())
        && email.split_once('@').is_some_and(|(user, host)| {
            !user.is_empty() && !host.is_empty() && !host.contains('@')
        });
    if is_sound {
        Ok(email)
    } else {
        Err(Error::EmailInvalid { field })
    }
}

/// Returns the beginning of the minute an instant lies in.
pub fn minute_of(instant: Timestamp) -> Timestamp {
    const MINUTE: i64 = 60_000_000;
    Timestamp::from_micros(instant.micros().div_euclid(MINUTE) * MINUTE)
}

fn shorten(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LADDER: [Role; 4] = [Role::Viewer, Role::Editor, Role::Admin, Role::Owner];
    const ENOUGH: Remaining = Remaining {
        owners: 1,
        owner_keys: 1,
        operator_keys: 1,
    };

    fn actor(role: Role) -> Actor {
        Actor {
            principal: Principal::Key(Id::from_bytes([1; 16])),
            workspace: Id::from_bytes([2; 16]),
            user: Some(Id::from_bytes([3; 16])),
            role,
        }
    }

    fn member(user: u8, role: Role) -> Member {
        Member {
            user: Id::from_bytes([user; 16]),
            workspace: Id::from_bytes([2; 16]),
            email: "a@b".into(),
            name: "A".into(),
            role,
            joined_at: Timestamp::EPOCH,
        }
    }

    fn key(user: u8, role: Role) -> Key {
        Key {
            id: Id::from_bytes([5; 16]),
            workspace: Id::from_bytes([2; 16]),
            user: Id::from_bytes([user; 16]),
            name: "K".into(),
            role,
            hint: "fv_abcd".into(),
            created_at: Timestamp::EPOCH,
            revoked_at: None,
            last_used_at: None,
        }
    }

    #[test]
    fn nobody_gives_away_more_than_they_have() {
        for (place, actor) in LADDER.into_iter().enumerate() {
            for (other, role) in LADDER.into_iter().enumerate() {
                assert_eq!(
                    check_grant(actor, role).is_ok(),
                    place >= other,
                    "{actor} {role}"
                );
            }
            assert!(check_grant(actor, Role::Worker).is_err());
            assert!(check_grant(actor, Role::Operator).is_err());
            assert!(check_grant(Role::Operator, actor).is_ok());
            assert!(check_grant(Role::Worker, actor).is_err());
        }
        assert!(check_grant(Role::Operator, Role::Worker).is_ok());
        assert!(check_grant(Role::Operator, Role::Operator).is_ok());
        assert!(check_grant(Role::Operator, Role::Service).is_err());
    }

    #[test]
    fn a_key_is_worth_no_more_than_its_user() {
        assert_eq!(effective_role(Role::Owner, Role::Viewer), Role::Viewer);
        assert_eq!(effective_role(Role::Viewer, Role::Owner), Role::Viewer);
        assert_eq!(effective_role(Role::Operator, Role::Owner), Role::Operator);
        assert_eq!(effective_role(Role::Operator, Role::Admin), Role::Admin);
        assert_eq!(effective_role(Role::Worker, Role::Viewer), Role::Worker);
    }

    #[test]
    fn an_admin_manages_those_below_and_an_owner_everybody() {
        for role in LADDER {
            let target = member(9, role);
            let below = !role.covers(Role::Admin);
            let viewer = Role::Viewer;
            let by = |actor_role| check_set_role(&actor(actor_role), &target, viewer, ENOUGH);
            assert_eq!(by(Role::Admin).is_ok(), below, "{role}");
            assert!(by(Role::Owner).is_ok());
            assert!(by(Role::Operator).is_ok());
            assert!(by(Role::Editor).is_err());
            assert_eq!(
                check_remove(&actor(Role::Admin), &target, ENOUGH).is_ok(),
                below
            );
        }
        let up = check_set_role(
            &actor(Role::Admin),
            &member(9, Role::Viewer),
            Role::Owner,
            ENOUGH,
        );
        assert!(matches!(up, Err(Error::RoleEscalation { .. })));
        let odd = check_set_role(
            &actor(Role::Owner),
            &member(9, Role::Viewer),
            Role::Worker,
            ENOUGH,
        );
        assert!(matches!(odd, Err(Error::RoleInvalid { .. })));
    }

    #[test]
    fn the_last_owner_can_be_neither_demoted_nor_removed() {
        let none = Remaining {
            owners: 0,
            ..ENOUGH
        };
        let last = member(3, Role::Owner);
        let demoted = check_set_role(&actor(Role::Owner), &last, Role::Admin, none);
        assert!(matches!(demoted, Err(Error::LastOwner)));
        assert!(check_set_role(&actor(Role::Owner), &last, Role::Owner, none).is_ok());
        let removed = check_remove(&actor(Role::Owner), &last, none);
        assert!(matches!(removed, Err(Error::LastOwner)));
        assert!(check_remove(&actor(Role::Owner), &member(9, Role::Viewer), none).is_ok());
    }

    #[test]
    fn anybody_who_is_not_the_last_owner_may_leave() {
        assert!(check_remove(&actor(Role::Admin), &member(3, Role::Admin), ENOUGH).is_ok());
    }

    #[test]
    fn the_last_key_that_matters_can_not_be_revoked() {
        let own = key(3, Role::Owner);
        assert!(check_revoke(&actor(Role::Owner), &own, ENOUGH).is_ok());
        let none = Remaining {
            owner_keys: 0,
            ..ENOUGH
        };
        let refusal = check_revoke(&actor(Role::Owner), &own, none);
        assert!(matches!(refusal, Err(Error::LastOwnerKey)));
        let none = Remaining {
            operator_keys: 0,
            ..ENOUGH
        };
        let refusal = check_revoke(&actor(Role::Operator), &own, none);
        assert!(matches!(refusal, Err(Error::LastOperatorKey)));
    }

    #[test]
    fn an_admin_does_not_revoke_an_owners_key_but_may_revoke_a_workers() {
        let refusal = check_revoke(&actor(Role::Admin), &key(9, Role::Owner), ENOUGH);
        assert!(matches!(refusal, Err(Error::RoleEscalation { .. })));
        assert!(check_revoke(&actor(Role::Admin), &key(9, Role::Worker), ENOUGH).is_ok());
        assert!(check_revoke(&actor(Role::Viewer), &key(3, Role::Owner), ENOUGH).is_ok());
    }

    #[test]
    fn slugs_names_and_addresses_of_another_form_are_refused() {
        for slug in ["abc", "a-b", "team-7", &"x".repeat(40)] {
            check_slug(slug).unwrap();
        }
        for slug in [
            "",
            "ab",
            "-ab",
            "ab-",
            "Team",
            "a b",
            "ä-team",
            &"x".repeat(41),
        ] {
            assert!(check_slug(slug).is_err(), "{slug}");
        }
        assert_eq!(
            clean_email("email", " Ada@Example.org ").unwrap(),
            "ada@example.org"
        );
        for email in [
            "",
            "ada",
            "@x",
            "a@",
            "a@b@c",
            "a b@c",
            &format!("{}@x", "a".repeat(260)),
        ] {
            assert!(clean_email("email", email).is_err(), "{email}");
        }
        assert_eq!(clean_name("name", " Ada ").unwrap(), "Ada");
        for name in ["", "  ", "a\nb", &"x".repeat(101)] {
            assert!(clean_name("name", name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_minute_begins_at_its_first_second() {
        let at = Timestamp::from_seconds(119) + std::time::Duration::from_micros(999_999);
        assert_eq!(minute_of(at), Timestamp::from_seconds(60));
    }
}
