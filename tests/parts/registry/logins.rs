//! Authorization: basic, tokens, refresh tokens, and credentials that are wrong or missing.

use smolet::proto::runtime::v1::AuthConfig;

use super::server::{Auth, Faults, LOGIN, REFRESH};
use super::{Node, with_app};

#[test]
fn logins() {
    let config = |edit: &dyn Fn(&mut AuthConfig)| {
        let mut config = AuthConfig::default();
        edit(&mut config);
        Some(config)
    };
    let login = |username: &str, password: &str| {
        config(&|config| (config.username, config.password) = (username.into(), password.into()))
    };
    let good = || login(LOGIN.0, LOGIN.1);
    let rows = [
        ("nothing for anyone", Auth::Anyone, None, ""),
        ("a login that nobody asks for", Auth::Anyone, good(), ""),
        ("basic", Auth::Basic, good(), ""),
        ("basic without a login", Auth::Basic, None, "give credentials in an image pull secret"),
        (
            "basic, wrong",
            Auth::Basic,
            login("me", "wrong-secret"),
            "check the credentials in the image pull secret",
        ),
        ("a token for anyone", Auth::Token, None, ""),
        ("a token for a login", Auth::TokenForLogin, good(), ""),
        (
            "a token without a login",
            Auth::TokenForLogin,
            None,
            "failed to authorize: failed to fetch anonymous token",
        ),
        (
            "a token, wrong login",
            Auth::TokenForLogin,
            login("me", "wrong-secret"),
            "incorrect username or password",
        ),
        ("auth", Auth::Basic, config(&|config| config.auth = "bWU6aHVudGVyMi1zZWNyZXQ=".into()), ""),
        (
            "auth that is none",
            Auth::Basic,
            config(&|config| config.auth = "secret".into()),
            "auth is no base64",
        ),
        ("identity token", Auth::TokenForLogin, config(&|config| config.identity_token = REFRESH.into()), ""),
        (
            "identity token, wrong",
            Auth::TokenForLogin,
            config(&|c| c.identity_token = "wrong-secret".into()),
            "failed to fetch oauth token",
        ),
        (
            "registry token",
            Auth::TokenForLogin,
            config(&|config| config.registry_token = "given-secret".into()),
            "",
        ),
        (
            "of another registry",
            Auth::Basic,
            config(&|config| {
                (config.username, config.password) = (LOGIN.0.into(), LOGIN.1.into());
                config.server_address = "https://other.example".into();
            }),
            "pull access denied",
        ),
    ];
    let (registry, image) = with_app(&[5000]);
    for (what, asks, auth, error) in rows {
        registry.set(asks, Faults::default());
        let node = Node { auth, ..Node::new() };
        match node.pull(&image) {
            Ok(_) => assert_eq!(error, "", "{what}"),
            Err(found) => {
                let found = found.to_string();
                assert!(!error.is_empty() && found.contains(error), "{what}: {found}");
            }
        }
    }
}

#[test]
fn a_token_that_expires_in_the_midst_is_renewed() {
    let (registry, image) = with_app(&[200_000, 3000, 4000]);
    registry.set(
        Auth::TokenForLogin,
        Faults { token_uses: Some(2), cut: Some((50_000, 4)), ..Faults::default() },
    );
    Node::with_login(LOGIN.0, LOGIN.1).pull(&image).unwrap();
    let log = registry.log();
    let tokens = log.iter().filter(|request| request.target.starts_with("/token")).count();
    assert!(tokens >= 3, "{tokens}");
    let token = log.iter().find(|request| request.target.starts_with("/token")).unwrap();
    assert!(token.target.contains("scope=repository%3Ateam%2Fapp%3Apull"), "{}", token.target);
}
