use super::*;
use proptest::prelude::*;

#[test]
fn what_kernels_write_is_read() {
    let text = "    MB:0=100;1=100\n    L3:0=fffff;1=fffff\n";
    let schemata: Schemata = text.parse().unwrap();
    assert_eq!(schemata.to_string(), "MB:0=100;1=100\nL3:0=fffff;1=fffff\n");
    assert_eq!(schemata.ways(&Resource::L3).unwrap()[&1], WayMask(0xfffff));
    // Variants: kernels before 6.15 pad numbers; CDP gives each cache two lines; AMD's masks may be empty and
    // have gaps.
    let text = "L3DATA:0=00ff;8=0005\nL3CODE:0=00f0;8=0000\n  L2CODE:3=1\n    MB:0=  16;8=2048\n  SMBA:0=  \
                50;8=2048\n";
    let schemata: Schemata = text.parse().unwrap();
    assert_eq!(schemata.l3().count(), 2);
    assert_eq!(schemata.ways(&Resource::L3Code).unwrap()[&8], WayMask::EMPTY);
    assert_eq!(
        schemata.to_string(),
        "L3DATA:0=ff;8=5\nL3CODE:0=f0;8=0\nL2CODE:3=1\nMB:0=16;8=2048\nSMBA:0=50;8=2048\n"
    );
    let text = "    L3:uninitialized\n    NEW:0=whatever\n";
    let schemata: Schemata = text.parse().unwrap();
    assert_eq!(schemata.line(&Resource::L3), Some(&Line::Uninitialized));
    assert_eq!(schemata.to_string(), "L3:uninitialized\nNEW:0=whatever\n");
}

#[test]
fn what_is_none_says_why() {
    for (text, problem) in [
        ("L3 0=f", "it has no colon"),
        (":0=f", "it names no resource"),
        ("L3:", "it names no domain"),
        ("L3:0", "an entry is no DOMAIN=VALUE"),
        ("L3:x=f", "a domain is no number"),
        ("L3:-1=f", "a domain is no number"),
        ("L3:0=-f", "a value cannot be read"),
        ("L3:0=11111111111111111", "a value cannot be read"),
        ("MB:0=1f", "a value cannot be read"),
        ("L3:0=f;0=f", "a domain is named twice"),
        ("L3:0=f\nL3:1=f", "the resource has two lines"),
    ] {
        assert_eq!(text.parse::<Schemata>().unwrap_err().problem, problem, "{text:?}");
    }
}

fn resource() -> impl Strategy<Value = Resource> {
    prop_oneof![
        Just(Resource::L3),
        Just(Resource::L3Code),
        Just(Resource::L3Data),
        Just(Resource::L2),
        Just(Resource::L2Code),
        Just(Resource::L2Data),
        Just(Resource::MemoryBandwidth),
        Just(Resource::SlowMemoryBandwidth),
        "[A-Z]{5,8}".prop_map(|name| Resource::named(&name)),
    ]
}

fn line(resource: Resource) -> impl Strategy<Value = (Resource, Line)> {
    let domains = || proptest::collection::btree_map(any::<u32>(), any::<u64>(), 1..5);
    let line = match &resource {
        Resource::Other(_) => "[0-9=;a-f]{0,20}".prop_map(Line::Unknown).boxed(),
        cache if cache.is_cache() => prop_oneof![
            9 => domains().prop_map(|ways| {
                Line::Ways(ways.into_iter().map(|(id, bits)| (id, WayMask(bits))).collect())
            }),
            1 => Just(Line::Uninitialized),
        ]
        .boxed(),
        _ => domains().prop_map(Line::Bandwidth).boxed(),
    };
    line.prop_map(move |line| (resource.clone(), line))
}

proptest! {
    #[test]
    fn what_is_printed_is_read_again(
        lines in proptest::collection::vec(resource().prop_flat_map(line), 0..6),
    ) {
        let mut schemata = Schemata::default();
        for (resource, line) in lines {
            if schemata.line(&resource).is_none() {
                schemata.lines.push((resource, line));
            }
        }
        prop_assert_eq!(schemata.to_string().parse::<Schemata>().unwrap(), schemata);
    }

    /// The kernel's padding and alignment do not change the meaning.
    #[test]
    fn padding_means_nothing(masks in proptest::collection::btree_map(0u32..20, 0u64..1 << 20, 1..5)) {
        let padded: Vec<String> = masks.iter().map(|(id, bits)| format!("{id}={bits:06x}")).collect();
        let padded = format!("        L3:{};\n", padded.join(";"));
        let ways = masks.into_iter().map(|(id, bits)| (id, WayMask(bits))).collect();
        prop_assert_eq!(padded.parse::<Schemata>().unwrap(), Schemata::of_ways(Resource::L3, ways));
    }

    #[test]
    fn no_text_does_harm(text in "[L23MBCODE0-9a-f:;= \n]{0,60}|\\PC{0,60}") {
        if let Ok(schemata) = text.parse::<Schemata>() {
            prop_assert_eq!(schemata.to_string().parse::<Schemata>().unwrap(), schemata);
        }
    }
}
