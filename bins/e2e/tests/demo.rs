//! The demo, as a test.

use tec_e2e::scenes::Stage;
use tec_e2e::settings::Settings;

#[test]
fn every_scene_ends_as_it_must() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let mut stage = Stage::new(Settings::for_tests(&report).unwrap(), directory.path()).unwrap();
    stage.play().unwrap();
    let letters: String = stage.story.scenes.iter().map(|scene| scene.letter).collect();
    assert_eq!(letters, "abcdefghijklz");
    let html = std::fs::read_to_string(report).unwrap();
    for code in ["TEC-A412", "TEC-A405", "TEC-A409", "TEC-R410", "TEC-A413"] {
        assert!(html.contains(code), "{code}");
    }
    let moved = stage.story.scenes.iter().find(|scene| scene.letter == 'l');
    let picture = moved.unwrap().picture.clone().unwrap();
    assert!(html.contains(&picture), "which anchor answered which boot");
    for anchor in ["the anchor outside", "the anchor inside"] {
        assert!(picture.contains(anchor), "{anchor}");
    }
}
