use super::*;
use crate::{SecretKey, Validity};
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> Timestamp {
    "2027-01-31T12:00:00Z".parse().unwrap()
}

fn key() -> SecretKey {
    SecretKey::generate().unwrap()
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn peer(key: &SecretKey, until: Option<Timestamp>) -> Peer {
    Peer { name: name("web-1"), key: key.public(), until }
}

fn authority(key: &SecretKey, until: Option<Timestamp>) -> Authority {
    Authority { name: name("fleet"), key: key.public(), names: vec!["web-*".parse().unwrap()], until }
}

fn revoked(key: &SecretKey) -> String {
    Trust::text_with_revoked("", &Revoked { key: key.public(), why: "lost".to_owned() })
}

trait ToText {
    fn to_text(&self) -> String;
}

impl ToText for Peer {
    fn to_text(&self) -> String {
        Trust::text_with_peer("", self)
    }
}

impl ToText for Authority {
    fn to_text(&self) -> String {
        Trust::text_with_authority("", self)
    }
}

fn certificate(authority: &SecretKey, key: &SecretKey, of: &str) -> Certificate {
    let validity = Validity { from: now().minus(HOUR), until: now().plus(HOUR) };
    Certificate::issue(authority, key.public(), name(of), validity).unwrap()
}

/// List with these entries.
fn trust(entries: &[String]) -> Trust {
    Trust::from_text(&entries.concat()).unwrap()
}

#[test]
fn a_listed_key_has_its_name_until_its_time_is_over() {
    let (one, other) = (key(), key());
    let always = trust(&[peer(&one, None).to_text()]);
    assert_eq!(always.identify(one.public(), None, Timestamp::MAX), Ok(name("web-1")));
    assert_eq!(always.identify(other.public(), None, now()), Err(Distrust::Unknown { key: other.public() }));
    let until = now().plus(HOUR);
    let bounded = trust(&[peer(&one, Some(until)).to_text()]);
    let last = until.minus(Duration::from_secs(1));
    assert_eq!(bounded.identify(one.public(), None, last), Ok(name("web-1")));
    let expired = Err(Distrust::Expired { key: one.public(), name: name("web-1"), until });
    assert_eq!(bounded.identify(one.public(), None, until), expired);
    // A certificate does not help a key whose entry is over.
    let signer = key();
    let bounded = trust(&[peer(&one, Some(until)).to_text(), authority(&signer, None).to_text()]);
    let valid = Validity { from: now(), until: Timestamp::MAX };
    let longer = Certificate::issue(&signer, one.public(), name("web-1"), valid).unwrap();
    assert_eq!(bounded.identify(one.public(), Some(&longer), until), expired);
}

#[test]
fn two_keys_have_one_name_while_the_key_is_changed() {
    let (old, new) = (key(), key());
    let both = [peer(&old, None).to_text(), peer(&new, None).to_text()];
    for key in [&old, &new] {
        assert_eq!(trust(&both).identify(key.public(), None, now()), Ok(name("web-1")));
    }
    let [first, second] = both;
    let after = trust(&[first, second, revoked(&old)]);
    assert_eq!(after.identify(new.public(), None, now()), Ok(name("web-1")));
    assert_eq!(after.identify(old.public(), None, now()), Err(Distrust::Revoked { key: old.public() }));
}

#[test]
fn a_certificate_of_a_trusted_authority_gives_a_name_for_its_time() {
    let (signer, one) = (key(), key());
    let trust = trust(&[authority(&signer, None).to_text()]);
    let certificate = certificate(&signer, &one, "web-7");
    let at = |time| trust.identify(one.public(), Some(&certificate), time);
    let validity = certificate.validity();
    let second = Duration::from_secs(1);
    assert_eq!(at(validity.from), Ok(name("web-7")));
    assert_eq!(at(validity.until.minus(second)), Ok(name("web-7")));
    let early = validity.from.minus(second);
    let not_yet = Distrust::NotYet { name: name("web-7"), from: validity.from, now: early };
    assert_eq!(at(early), Err(not_yet));
    let until = validity.until;
    let over = Distrust::CertificateExpired { name: name("web-7"), until, now: until };
    assert_eq!(at(until), Err(over));
}

#[test]
fn a_certificate_helps_its_own_key_only() {
    let (signer, one, thief) = (key(), key(), key());
    let trust = trust(&[authority(&signer, None).to_text()]);
    let certificate = certificate(&signer, &one, "web-7");
    let shown = trust.identify(thief.public(), Some(&certificate), now());
    let expected = Distrust::OfAnother { key: thief.public(), certified: one.public() };
    assert_eq!(shown, Err(expected));
}

#[test]
fn an_authority_gives_the_names_of_its_list_only() {
    let (signer, one) = (key(), key());
    let trust = trust(&[authority(&signer, None).to_text()]);
    let certificate = certificate(&signer, &one, "db-1");
    let expected = Distrust::NameNotAllowed { name: name("db-1"), authority: name("fleet") };
    assert_eq!(trust.identify(one.public(), Some(&certificate), now()), Err(expected));
}

#[test]
fn who_is_no_authority_gives_no_names() {
    let (signer, one) = (key(), key());
    let certificate = certificate(&signer, &one, "web-7");
    let identify = |entries: &[String]| trust(entries).identify(one.public(), Some(&certificate), now());
    // Nor is a trusted peer one.
    let unknown = Err(Distrust::UnknownAuthority { name: name("web-7"), authority: signer.public() });
    assert_eq!(identify(&[]), unknown);
    assert_eq!(identify(&[peer(&signer, None).to_text()]), unknown);
    let gone = Err(Distrust::AuthorityRevoked { name: name("web-7"), authority: signer.public() });
    assert_eq!(identify(&[authority(&signer, None).to_text(), revoked(&signer)]), gone);
    let expired = Distrust::AuthorityExpired { name: name("web-7"), authority: name("fleet"), until: now() };
    assert_eq!(identify(&[authority(&signer, Some(now())).to_text()]), Err(expired));
    let for_an_hour = authority(&signer, Some(now().plus(HOUR)));
    assert_eq!(identify(&[for_an_hour.to_text()]), Ok(name("web-7")));
    // An authority is no peer.
    let trust = trust(&[authority(&signer, None).to_text()]);
    let shown = trust.identify(signer.public(), None, now());
    assert_eq!(shown, Err(Distrust::Unknown { key: signer.public() }));
}

#[test]
fn a_revoked_key_has_no_certificate_that_helps() {
    let (signer, one) = (key(), key());
    let trust = trust(&[authority(&signer, None).to_text(), revoked(&one)]);
    let certificate = certificate(&signer, &one, "web-7");
    let shown = trust.identify(one.public(), Some(&certificate), now());
    assert_eq!(shown, Err(Distrust::Revoked { key: one.public() }));
}

#[test]
fn what_the_authority_did_not_sign_is_no_certificate() {
    let (signer, one, forger) = (key(), key(), key());
    let trust = trust(&[authority(&signer, None).to_text()]);
    // The forger's certificate, with the name of the authority's key in it.
    let forged = certificate(&forger, &one, "web-7");
    let mut bytes = forged.encode();
    let at = bytes.windows(32).position(|key| key == forger.public().as_bytes()).unwrap();
    bytes[at..at + 32].copy_from_slice(signer.public().as_bytes());
    let forged = Certificate::decode(&bytes).unwrap();
    let expected = Distrust::Signature { name: name("web-7"), authority: name("fleet") };
    assert_eq!(trust.identify(one.public(), Some(&forged), now()), Err(expected));
}

#[test]
fn clocks_an_hour_apart_matter_to_certificates_only() {
    let (listed, certified, signer) = (key(), key(), key());
    let trust = trust(&[peer(&listed, None).to_text(), authority(&signer, None).to_text()]);
    // The authority's clock is an hour ahead.
    let validity = Validity { from: now().plus(HOUR), until: now().plus(24 * HOUR) };
    let certificate = Certificate::issue(&signer, certified.public(), name("web-2"), validity).unwrap();
    assert_eq!(trust.identify(listed.public(), None, now()), Ok(name("web-1")));
    let early = trust.identify(certified.public(), Some(&certificate), now());
    assert!(early.unwrap_err().to_string().contains("are both clocks right?"));
    // What jet keys sign makes holds from two hours before on.
    let validity = Validity { from: validity.from.minus(2 * HOUR), ..validity };
    let certificate = Certificate::issue(&signer, certified.public(), name("web-2"), validity).unwrap();
    assert_eq!(trust.identify(certified.public(), Some(&certificate), now()), Ok(name("web-2")));
}

#[test]
fn lists_say_what_is_wrong_with_them() {
    let (one, other) = (key(), key());
    let error = |text: &str| Trust::from_text(text).unwrap_err();
    let twice = [peer(&one, None).to_text(), peer(&one, None).to_text()].concat();
    assert!(matches!(error(&twice), TrustError::Twice { key, .. } if key == one.public()));
    let nobody = Authority { names: vec![], ..authority(&other, None) }.to_text();
    assert_eq!(error(&nobody), TrustError::NoNames(name("fleet")));
    for (text, said) in [
        ("[[peers]]\nname = \"web-1\"\n", "missing field `key`"),
        ("[[peers]]\nname = \"web-1\"\nkey = \"ed25519:short\"\n", "is no public key"),
        ("[[peers]]\nname = \"web 1\"\n", "is no name"),
        ("[[people]]\n", "unknown field `people`"),
        ("[[revoked]]\nkey = \"rsa\"\n", "is no public key"),
        ("no list", "expected"),
    ] {
        let error = error(text).to_string();
        assert!(error.contains(said), "{text}: {error}");
    }
    let known = one.public();
    for (kind, rest) in [("peers", ""), ("authorities", "names = [\"*\"]\n"), ("revoked", "")] {
        let name = if kind == "revoked" { "" } else { "name = \"a\"\n" };
        let text = format!("[[{kind}]]\n{name}key = \"{known}\"\n{rest}untill = \"soon\"\n");
        let error = error(&text);
        assert!(error.to_string().contains("unknown field `untill`"), "{error}");
        assert!(matches!(error, TrustError::Text { line, .. } if line >= 3), "{error}");
    }
    // What the file holds is in no error: it may be a secret key by mistake.
    let secret = one.to_text().replace("-----BEGIN PRIVATE KEY-----", "");
    let said = error(&secret).to_string();
    let line = secret.lines().nth(1).unwrap();
    assert!(!said.contains(&line[..8]), "{said}");
    let until = peer(&one, None).to_text() + "until = \"soon\"\n";
    assert!(error(&until).to_string().contains("is no point in time"));
}

#[test]
fn a_list_shows_all_of_its_entries_and_how_they_stand() {
    let (one, two, three, signer) = (key(), key(), key(), key());
    let trust = trust(&[
        peer(&one, None).to_text(),
        Peer { name: name("a"), ..peer(&two, Some(now())) }.to_text(),
        Peer { name: name("z"), ..peer(&three, Some(now())) }.to_text(),
        authority(&signer, None).to_text(),
        revoked(&three),
        revoked(&three),
    ]);
    let peers: Vec<_> =
        trust.peers(now()).into_iter().map(|(peer, standing)| (peer.name.as_str(), standing)).collect();
    let expected = [("a", Standing::Expired), ("web-1", Standing::Trusted), ("z", Standing::Revoked)];
    assert_eq!(peers, expected);
    assert_eq!(trust.authorities(now())[0].1, Standing::Trusted);
    let standing = |until, revocations: &[String]| {
        let entries = [&[authority(&signer, until).to_text()], revocations].concat();
        self::trust(&entries).authorities(now())[0].1
    };
    assert_eq!(standing(Some(now().plus(HOUR)), &[]), Standing::Trusted);
    assert_eq!(standing(Some(now()), &[]), Standing::Expired);
    assert_eq!(standing(Some(now()), &[revoked(&signer)]), Standing::Revoked);
    assert_eq!(trust.revoked()[0].why, "lost");
    assert_eq!(trust.revoked().len(), 1);
}

#[test]
fn what_is_left_of_a_list_that_was_cut_trusts_nobody_more() {
    let (one, two, signer) = (key(), key(), key());
    let until = now();
    let mut text = "# Ours.\n".to_owned();
    text = Trust::text_with_peer(&text, &peer(&one, None));
    text = Trust::text_with_peer(&text, &peer(&two, Some(until)));
    text = Trust::text_with_authority(&text, &authority(&signer, Some(until)));
    text = Trust::text_with_revoked(&text, &Revoked { key: one.public(), why: String::new() });
    assert!(text.starts_with("# Ours.\n"), "{text}");
    let mut lists = 0;
    for end in 0..=text.len() {
        let Ok(trust) = Trust::from_text(&text[..end]) else { continue };
        lists += 1;
        for key in [&one, &two] {
            assert!(trust.identify(key.public(), None, now()).is_err(), "{}", &text[..end]);
        }
        assert!(trust.authorities(now()).iter().all(|(_, standing)| *standing == Standing::Expired));
    }
    assert!(lists > 4, "{lists}");
}

#[test]
fn clocks_an_hour_apart_move_the_end_of_a_key_by_an_hour() {
    let one = key();
    let trust = trust(&[peer(&one, Some(now())).to_text()]);
    // A host that is an hour behind trusts the key an hour longer, and one that is ahead ends it sooner.
    let second = Duration::from_secs(1);
    assert!(trust.identify(one.public(), None, now().minus(second)).is_ok());
    assert!(trust.identify(one.public(), None, now().plus(HOUR)).is_err());
}
