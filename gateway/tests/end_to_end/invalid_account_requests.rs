//! Errors of calls about the viewer's own account.

use microblog_chassis::status;
use microblog_proto::{common::ErrorReason, gateway, user};
use tonic::Code;
use tonic_types::StatusExt as _;

use crate::{
    errors::{assert_error, invalid},
    system::{PASSWORD, System, email, registration},
};

#[tokio::test]
async fn an_invalid_registration_names_its_fields() {
    let system = System::start().await;
    system.join("taken").await;
    let with = |change: &dyn Fn(&mut gateway::RegisterRequest)| {
        let mut request = registration("ann");
        change(&mut request);
        request
    };
    let cases = [
        (with(&|r| r.request_id = "1".into()), invalid(&["request_id"])),
        (with(&|r| r.email = "ann".into()), invalid(&["email"])),
        (with(&|r| r.email = format!("{}@x.org", "a".repeat(300))), invalid(&["email"])),
        (with(&|r| r.name = String::new()), invalid(&["name"])),
        (with(&|r| r.name = "a b".into()), invalid(&["name"])),
        (with(&|r| r.name = "\u{202e}a".into()), invalid(&["name"])),
        (with(&|r| r.name = "a".repeat(31)), invalid(&["name"])),
        (with(&|r| r.password = "short".into()), invalid(&["password"])),
        (with(&|r| r.password = "x".repeat(1_000_000)), invalid(&["password"])),
        (with(&|r| r.display_name = "a\0".into()), invalid(&["display_name"])),
        (with(&|r| r.display_name = "\u{202d}a".into()), invalid(&["display_name"])),
        (with(&|r| r.display_name = "\u{2800}".into()), invalid(&["display_name"])),
        (
            with(&|r| r.name = "TAKEN".into()),
            (Code::AlreadyExists, ErrorReason::NameTaken, &[][..]),
        ),
        (
            with(&|r| r.email = email("taken")),
            (Code::AlreadyExists, ErrorReason::EmailTaken, &[][..]),
        ),
        (
            with(&|r| r.display_name = "x".repeat(5 << 20)),
            (Code::ResourceExhausted, ErrorReason::MessageTooLarge, &[][..]),
        ),
    ];
    for (request, expected) in cases {
        let what = format!("{:?} {:?} {:?}", request.name.len(), request.email.len(), expected);
        assert_error(&what, system.gateway().register(request).await, expected);
    }
    let request = gateway::CheckAvailabilityRequest { name: "a b".into() };
    let answer = system.gateway().check_availability(request).await;
    assert_error("availability", answer, invalid(&["name"]));
}

#[tokio::test]
async fn an_invalid_profile_or_password_names_its_fields() {
    let system = System::start().await;
    let ann = system.join("ann").await;
    let update = async |changes: user::ProfileChanges| {
        let request = gateway::UpdateProfileRequest { changes: Some(changes) };
        system.gateway().update_profile(ann.request(request)).await
    };
    let none = user::ProfileChanges::default;
    for (request, field) in [
        (
            user::ProfileChanges { display_name: Some("a\nb".into()), ..none() },
            "changes.display_name",
        ),
        (user::ProfileChanges { bio: Some("\u{202e}".into()), ..none() }, "changes.bio"),
        (user::ProfileChanges { bio: Some("x".repeat(161)), ..none() }, "changes.bio"),
        (
            user::ProfileChanges { avatar_url: Some("javascript:0".into()), ..none() },
            "changes.avatar_url",
        ),
        (user::ProfileChanges { location: Some("\u{7}".into()), ..none() }, "changes.location"),
        (user::ProfileChanges { location: Some("\u{ffa0}".into()), ..none() }, "changes.location"),
    ] {
        assert_error(field, update(request).await, invalid(&[field]));
    }
    let wrong = (Code::Unauthenticated, ErrorReason::BadCredentials, &[][..]);
    for (current, new, expected) in [
        (PASSWORD, "short", invalid(&["new_password"])),
        ("not this one", "long enough to be one", wrong),
    ] {
        let request = gateway::ChangePasswordRequest {
            current_password: current.to_owned(),
            new_password: new.to_owned(),
        };
        let answer = system.gateway().change_password(ann.request(request)).await;
        assert_error(new, answer, expected);
    }
}

#[tokio::test]
async fn failed_log_ins_are_rejected_and_then_throttled() {
    let system = System::start().await;
    system.join("ann").await;
    let login = async |email: String| {
        let request = gateway::LoginRequest { login: email, password: "not this one".to_owned() };
        system.gateway().login(request).await
    };
    let wrong = (Code::Unauthenticated, ErrorReason::BadCredentials, &[][..]);
    assert_error("a wrong password", login(email("ann")).await, wrong);
    assert_error("an unknown address", login(email("unknown")).await, wrong);
    for _ in 0..20 {
        let error = login(email("ann")).await.unwrap_err();
        if status::reason_of(&error) == Some(ErrorReason::LoginThrottled) {
            assert_eq!(error.code(), Code::ResourceExhausted);
            assert!(error.get_details_retry_info().unwrap().retry_delay.is_some());
            return;
        }
    }
    panic!("never throttled");
}
