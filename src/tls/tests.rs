use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, SanType};

use super::*;

fn params(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params
}

fn authority(name: &str) -> (CertificateParams, KeyPair) {
    let mut params = params(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    (params, KeyPair::generate().unwrap())
}

/// A server's certificate with so many intermediates, the lowest first, and its root.
fn chain(intermediates: usize) -> (CertificateDer<'static>, Vec<CertificateDer<'static>>, RootCertStore) {
    let (root, key) = authority("root");
    let mut roots = RootCertStore::empty();
    roots.add(root.self_signed(&key).unwrap().der().clone()).unwrap();
    let mut issuer = Issuer::new(root, key);
    let mut shown = Vec::new();
    for number in 0..intermediates {
        let (params, key) = authority(&format!("authority {number}"));
        shown.insert(0, params.signed_by(&key, &issuer).unwrap().der().clone());
        issuer = Issuer::new(params, key);
    }
    let mut own = CertificateParams::new(["gw".to_owned()]).unwrap();
    own.distinguished_name.push(DnType::CommonName, "gw");
    let own = own.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap().der().clone();
    (own, shown, roots)
}

fn verified(
    own: &CertificateDer<'_>,
    shown: &[CertificateDer<'_>],
    roots: RootCertStore,
) -> Result<(), String> {
    let name = ServerName::try_from("gw").unwrap();
    let verifier = server_verifier(roots).unwrap();
    let verified = verifier.verify_server_cert(own, shown, &name, &[], UnixTime::now());
    verified.map(|_| ()).map_err(|error| error.to_string())
}

#[test]
fn a_chain_of_the_greatest_usual_length_is_verified() {
    for intermediates in 0..=INTERMEDIATES_MAX {
        let (own, shown, roots) = chain(intermediates);
        assert_eq!(verified(&own, &shown, roots), Ok(()), "{intermediates}");
    }
    let (own, shown, roots) = chain(INTERMEDIATES_MAX + 1);
    let why = verified(&own, &shown, roots).unwrap_err();
    assert!(why.contains("the peer shows 5 certificates beside its own, of at most 4"), "{why}");
}

#[test]
fn a_server_may_show_an_authority_that_is_its_own() {
    let own = |names: &[&str], until: i32| {
        let (mut params, key) = authority("gw");
        params.subject_alt_names =
            names.iter().map(|name| SanType::DnsName((*name).try_into().unwrap())).collect();
        params.not_after = rcgen::date_time_ymd(until, 1, 1);
        params.self_signed(&key).unwrap().der().clone()
    };
    let roots = |certificate: &CertificateDer<'static>| {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        roots
    };
    let good = own(&["gw"], 4096);
    assert_eq!(verified(&good, &[], roots(&good)), Ok(()));
    // Another one's, with the same names.
    let why = verified(&own(&["gw"], 4096), &[], roots(&good)).unwrap_err();
    assert!(why.contains("CaUsedAsEndEntity"), "{why}");
    for (own, expected) in [(own(&["other"], 4096), "not valid for name"), (own(&["gw"], 2001), "expired")] {
        let why = verified(&own, &[], roots(&own)).unwrap_err();
        assert!(why.to_ascii_lowercase().contains(expected), "{why}");
    }
}

/// Processor time of this thread, which does not depend on what else the machine does.
fn processor_time() -> Duration {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).try_into().unwrap()
}

#[test]
fn verification_is_fast_however_the_certificates_are_linked() {
    // Each of them may have signed any other, and the root all of them.
    let (root, key) = authority("a");
    let mut roots = RootCertStore::empty();
    roots.add(root.self_signed(&key).unwrap().der().clone()).unwrap();
    let other = Issuer::new(root, KeyPair::generate().unwrap());
    let tangled = |number: usize| {
        let one =
            |_| authority("a").0.signed_by(&KeyPair::generate().unwrap(), &other).unwrap().der().clone();
        (0..number).map(one).collect::<Vec<_>>()
    };
    let own = params("gw").signed_by(&KeyPair::generate().unwrap(), &other).unwrap().der().clone();
    for number in [INTERMEDIATES_MAX, INTERMEDIATES_MAX + 1, 200] {
        let shown = tangled(number);
        let before = processor_time();
        assert!(verified(&own, &shown, roots.clone()).is_err());
        let time = processor_time().saturating_sub(before);
        println!("{number} certificates: {time:?}");
        // Without the limit it would take minutes. An emulator gets more time.
        let time_max = Duration::from_secs(if cfg!(target_arch = "x86_64") { 1 } else { 20 });
        assert!(time < time_max, "{number} certificates: {time:?}");
    }
}
