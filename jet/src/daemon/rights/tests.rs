use super::config::{Account, RegisterRule};
use super::*;

const STORAGE: u32 = 1001;
const GUEST: u32 = 1002;
const DISKS: u32 = 200;

const fn file(inode: u64) -> FileIdentity {
    FileIdentity { device: 1, inode }
}

/// Programs of this host by their paths.
fn identity_of(path: &Path) -> Option<FileIdentity> {
    match path.to_str()? {
        "/usr/bin/storaged" => Some(file(7)),
        "/usr/bin/other" => Some(file(8)),
        _ => None,
    }
}

fn number(number: u32) -> Account {
    Account::Number(number)
}

fn rights(register: &[RegisterRule]) -> Rights {
    let config = RightsConfig { look: Viewers::Applications, register: register.to_vec() };
    config.check(4).unwrap();
    accounts::resolve(&config).unwrap()
}

fn names(names: &[&str]) -> RegisterRule {
    RegisterRule { names: names.iter().map(|&name| name.to_owned()).collect(), ..RegisterRule::default() }
}

fn decide(rights: &Rights, subject: &Subject, name: &str, class: u8) -> Result<(), RegisterDenied> {
    rights.may_register(subject, &AppName::new(name).unwrap(), class, identity_of)
}

fn subject(user: u32) -> Subject {
    Subject { user: Some(user), ..Subject::default() }
}

#[test]
fn without_an_entry_everybody_may_register_everything() {
    let rights = rights(&[]);
    assert!(!rights.asks_who() && !rights.asks_for_program(&AppName::new("store").unwrap()));
    assert_eq!(decide(&rights, &Subject::default(), "store", 3), Ok(()));
}

#[test]
fn each_condition_of_an_entry_must_hold() {
    let rule = RegisterRule {
        users: vec![number(STORAGE)],
        groups: vec![number(DISKS)],
        executables: vec!["/usr/bin/gone".into(), "/usr/bin/storaged".into()],
        classes: vec![1, 2],
        ..names(&["store"])
    };
    let rights = rights(&[rule]);
    let asks = |name| rights.asks_for_program(&AppName::new(name).unwrap());
    assert!(rights.asks_who() && asks("store") && !asks("other"));
    let allowed = Subject { program: Some(file(7)), ..subject(STORAGE) };
    assert_eq!(decide(&rights, &allowed, "store", 1), Ok(()));
    let by_group = Subject { user: Some(GUEST), groups: vec![3, DISKS], ..allowed.clone() };
    assert_eq!(decide(&rights, &by_group, "store", 2), Ok(()));
    let without_number = Subject { user: None, ..by_group.clone() };
    assert_eq!(decide(&rights, &without_number, "store", 2), Ok(()));
    assert_eq!(decide(&rights, &allowed, "stor", 1), Err(RegisterDenied::Name));
    assert_eq!(decide(&rights, &allowed, "store2", 1), Err(RegisterDenied::Name));
    let stranger = Subject { user: Some(GUEST), groups: vec![3], ..allowed.clone() };
    assert_eq!(decide(&rights, &stranger, "store", 1), Err(RegisterDenied::Account));
    let nobody = Subject { user: None, ..stranger };
    assert_eq!(decide(&rights, &nobody, "store", 1), Err(RegisterDenied::Account));
    // Numbers of users and of groups are two things.
    let crossed = Subject { user: Some(DISKS), groups: vec![STORAGE], ..allowed.clone() };
    assert_eq!(decide(&rights, &crossed, "store", 1), Err(RegisterDenied::Account));
    let other = Subject { program: Some(file(8)), ..allowed.clone() };
    assert_eq!(decide(&rights, &other, "store", 1), Err(RegisterDenied::Program));
    assert_eq!(decide(&rights, &subject(STORAGE), "store", 1), Err(RegisterDenied::ProgramUnknown));
    assert_eq!(decide(&rights, &allowed, "store", 0), Err(RegisterDenied::Class));
}

#[test]
fn a_program_that_is_not_there_is_nobodys() {
    let rule = RegisterRule { executables: vec!["/usr/bin/gone".into()], ..names(&["store"]) };
    let any = Subject { program: Some(file(8)), ..subject(STORAGE) };
    assert_eq!(decide(&rights(&[rule]), &any, "store", 0), Err(RegisterDenied::Program));
}

#[test]
fn a_star_stands_for_all_names_that_begin_so() {
    let some = rights(&[RegisterRule { users: vec![number(STORAGE)], ..names(&["store-*", "log"]) }]);
    for (name, allowed) in
        [("store-", true), ("store-a", true), ("store", false), ("log", true), ("logs", false)]
    {
        assert_eq!(decide(&some, &subject(STORAGE), name, 0).is_ok(), allowed, "{name}");
    }
    let all = rights(&[names(&["*"])]);
    assert_eq!(decide(&all, &Subject::default(), "x", 3), Ok(()));
}

#[test]
fn one_entry_must_allow_all_and_the_closest_says_what_it_has_not() {
    let rights = rights(&[
        RegisterRule { users: vec![number(STORAGE)], classes: vec![0], ..names(&["a"]) },
        RegisterRule { users: vec![number(GUEST)], classes: vec![1], ..names(&["a"]) },
        RegisterRule { users: vec![number(GUEST)], classes: vec![0], ..names(&["b"]) },
    ]);
    assert_eq!(decide(&rights, &subject(STORAGE), "a", 0), Ok(()));
    assert_eq!(decide(&rights, &subject(GUEST), "a", 1), Ok(()));
    assert_eq!(
        decide(&rights, &subject(GUEST), "a", 0),
        Err(RegisterDenied::Class),
        "of two entries together"
    );
    assert_eq!(decide(&rights, &subject(STORAGE), "b", 0), Err(RegisterDenied::Account));
}

#[test]
fn accounts_have_names_or_numbers() {
    let root = RegisterRule {
        users: vec![Account::Name("root".to_owned()), number(5)],
        groups: vec![Account::Name("root".to_owned())],
        ..names(&["store"])
    };
    let found = rights(&[root]);
    assert_eq!((&found.register[0].users[..], &found.register[0].groups[..]), (&[0, 5][..], &[0][..]));
    for key in ["users", "groups"] {
        let unknown = vec![Account::Name("no such account".to_owned())];
        let mut rule = names(&["store"]);
        *if key == "users" { &mut rule.users } else { &mut rule.groups } = unknown;
        let config = RightsConfig { register: vec![rule], ..RightsConfig::default() };
        let error = accounts::resolve(&config).unwrap_err().to_string();
        let told = [format!("{key} has \"no such account\""), "or a number".to_owned()];
        assert!(told.iter().all(|part| error.contains(part)), "{error}");
    }
}

#[test]
fn entries_that_can_allow_nothing_are_refused() {
    let refused = |rule: RegisterRule| {
        let register = vec![names(&["fine"]), rule];
        RightsConfig { register, ..RightsConfig::default() }.check(4).unwrap_err().to_string()
    };
    assert!(refused(names(&[])).contains("entry 2 has no names; write names = [\"store\"]"));
    for bad in ["", "a b", "a*b", "**", "*a", "a name that is longer than names can be"] {
        let error = refused(names(&["store", bad]));
        assert!(error.contains(&format!("entry 2: names has \"{bad}\"")), "{error}");
    }
    let error = refused(RegisterRule { classes: vec![0, 4], ..names(&["store"]) });
    assert!(error.contains("classes has 4, but there are 0 to 3"), "{error}");
    let error = refused(RegisterRule { executables: vec!["storaged".into()], ..names(&["store"]) });
    assert!(error.contains("write the whole path"), "{error}");
}
