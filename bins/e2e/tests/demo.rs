//! The demo, as a test.

use tec_e2e::scenes::Stage;
use tec_e2e::settings::Settings;

#[test]
fn every_scene_ends_as_it_must() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.html");
    let mut stage = Stage::new(Settings::for_tests(&report).unwrap(), directory.path()).unwrap();
    stage.play().unwrap();
    let letters: String = stage
        .story
        .scenes
        .iter()
        .map(|scene| scene.letter)
        .collect();
    assert_eq!(letters, "abcdefghijz");
    let html = std::fs::read_to_string(report).unwrap();
    for code in ["TEC-A412", "TEC-A405", "TEC-R410", "TEC-A413"] {
        assert!(html.contains(code), "{code}");
    }
}
