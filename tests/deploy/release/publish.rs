//! Images and the chart in a registry: verified with the commands of `docs/verifying.md`, which
//! fail when a byte differs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

use super::{
    ARCHITECTURES, MANIFEST, VERSION, done, path, programs, registry::Registry, script, sum,
};
use crate::{
    deploy::{
        chart::tool,
        image::{Layout, said},
    },
    lab::run,
};

/// In the sandbox's own `/run`.
const PLACE: &str = "/run/release";

/// The part of the repository that the chart is in.
const CHART: &str = "/charts/tripod";

/// The environment of a user: a folder with the files of a release and the public key, and a
/// registry.
struct User {
    folder: PathBuf,
    registry: Registry,
}

impl User {
    fn repository(&self) -> String {
        format!("{}/acme/tripod", self.registry.address)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.folder).env("PATH", path());
        command.env("SSL_CERT_FILE", self.registry.certificate());
        command
    }

    /// Runs the block of commands of the page that contains `word`, on a part of the repository.
    fn block(&self, word: &str, part: &str, tag: &str) -> Result<(), String> {
        let page = fs::read_to_string(Path::new(MANIFEST).join("docs/verifying.md"));
        let page = page.expect("the page");
        let blocks = page.split("```sh\n").skip(1);
        let mut blocks = blocks.filter_map(|rest| rest.split("```").next());
        let block = blocks.find(|block| block.contains(word)).expect(word);
        let _ = fs::remove_dir_all(self.folder.join("signature"));
        let mut command = self.command("sh");
        command.args(["-e", "-c", block]).env("TAG", tag);
        command.env("REPOSITORY", self.repository() + part);
        succeeds(&mut command)
    }

    fn verify_files(&self) -> Result<(), String> {
        self.block("sha256sum --check", "", "")
    }

    /// Verifies the image, and copies it with both architectures.
    fn verify_image(&self) -> Result<(), String> {
        self.block("skopeo copy", "", &image_tag())?;
        let mut copy = self.command("skopeo");
        copy.args(["copy", "--quiet", "--all"]);
        let from = format!("docker://{}:{}", self.repository(), image_tag());
        succeeds(copy.arg(from).arg("dir:copy"))
    }

    /// Verifies the chart, and gets it.
    fn verify_chart(&self) -> Result<(), String> {
        self.block("skopeo copy", CHART, VERSION)?;
        let chart = format!("oci://{}{CHART}", self.repository());
        let mut pull = self.command("helm");
        let _ = fs::remove_dir_all(self.folder.join("chart"));
        fs::create_dir(self.folder.join("chart")).expect("a folder");
        succeeds(pull.args(["pull", &chart, "--version", VERSION, "--destination=chart"]))
    }

    /// The path at which the registry stores the manifest with this tag.
    fn manifest(&self, part: &str, tag: &str) -> PathBuf {
        let mut command = self.command("skopeo");
        let name = format!("docker://{}{part}:{tag}", self.repository());
        let text = done(command.args(["inspect", "--raw", &name]));
        let file = self.folder.join("manifest");
        fs::write(&file, &text).expect("a file");
        self.registry.object(&format!("sha256:{}", sum(&file)))
    }

    /// Pulls the image of an architecture from the registry.
    fn pull(&self, architecture: &str) -> PathBuf {
        let place = self.folder.join(architecture);
        fs::create_dir(&place).expect("a folder");
        let layout = Layout::of(&place);
        let mut copy = self.command("skopeo");
        copy.args(["copy", "--quiet", "--override-arch", architecture]);
        copy.arg(format!("docker://{}:{}", self.repository(), image_tag()));
        done(copy.arg(layout.tag()));
        layout.unpack(&place)
    }
}

fn image_tag() -> String {
    format!("{VERSION}-minimal")
}

fn succeeds(command: &mut Command) -> Result<(), String> {
    let output = command.output().expect("running it");
    output
        .status
        .success()
        .then_some(())
        .ok_or_else(|| said(&output))
}

/// Makes the key `name`.key and `name`.pub in `folder`, as `deploy/dist/sums.sh` describes.
fn make_key(folder: &Path, name: &str) -> PathBuf {
    let [key, public] = ["key", "pub"].map(|end| folder.join(format!("{name}.{end}")));
    let mut make = Command::new("openssl");
    make.args([
        "ecparam",
        "-name",
        "prime256v1",
        "-genkey",
        "-noout",
        "-out",
    ]);
    done(make.arg(&key));
    let mut publish = Command::new("openssl");
    publish
        .args(["pkey", "-pubout", "-in"])
        .arg(&key)
        .arg("-out");
    done(publish.arg(public));
    key
}

/// Makes the part of a release that is pushed, and returns its folder.
fn release(place: &Path, [x86_64, aarch64]: &[PathBuf; 2], key: &Path) -> PathBuf {
    let dist = place.join("dist");
    fs::create_dir(&dist).expect("a folder");
    let mut image = script("image.sh");
    image
        .arg("minimal")
        .arg(dist.join(format!("tripod-{VERSION}-image-minimal.tar")));
    image.arg(format!("amd64={}", x86_64.display()));
    done(image.arg(format!("arm64={}", aarch64.display())));
    let mut chart = Command::new(tool("helm/helm").expect("Helm"));
    chart
        .current_dir(MANIFEST)
        .args(["package", "deploy/helm/tripod", "--destination"]);
    done(chart.arg(&dist));
    done(
        script("sums.sh")
            .arg("write")
            .arg(&dist)
            .env("TRIPOD_SIGNING_KEY", key),
    );
    dist
}

/// Runs `body` while the byte of `file` after `text`, or in its middle, is changed.
fn with_changed_byte<T>(file: &Path, text: &str, body: impl FnOnce() -> T) -> T {
    let original = fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let text = text.as_bytes();
    let at = match original
        .windows(text.len().max(1))
        .position(|found| found == text)
    {
        Some(found) => found + text.len(),
        None => original.len() / 2,
    };
    let mut changed = original.clone();
    // A digit, so that JSON, base64 and hexadecimal numbers stay valid.
    changed[at] = if original[at] == b'0' { b'1' } else { b'0' };
    fs::write(file, changed).expect("writing");
    let returned = body();
    fs::write(file, original).expect("writing");
    returned
}

/// Runs `body` with a user whose folder has the release, and with the release's own folder and
/// key.
fn published(body: impl FnOnce(&User, &Path, &Path, &[PathBuf; 2])) {
    run(|| {
        let place = Path::new(PLACE);
        let tools = (tool("helm/helm"), tool("usr/bin/docker-registry"));
        let (Some(programs), (Some(_), Some(server))) = (programs(place), tools) else {
            return;
        };
        done(Command::new("ip").args(["link", "set", "lo", "up"]));
        let registry = Registry::start(&server, &place.join("registry"));
        let key = make_key(place, "tripod");
        let dist = release(place, &programs, &key);
        let folder = place.join("user");
        done(Command::new("cp").arg("-r").args([&dist, &folder]));
        fs::copy(key.with_extension("pub"), folder.join("tripod.pub")).expect("the key");
        let user = User { folder, registry };
        succeeds(&mut publish(&user, &dist, &key)).expect("publishing");
        body(&user, &dist, &key, &programs);
    });
}

fn publish(user: &User, dist: &Path, key: &Path) -> Command {
    let mut publish = script("publish.sh");
    publish.arg(user.repository()).arg(dist);
    publish.env("SSL_CERT_FILE", user.registry.certificate());
    publish.env("TRIPOD_SIGNING_KEY", key);
    publish
}

#[test]
fn both_architectures_and_the_chart_come_back() {
    published(|user, dist, _, programs| {
        for (program, (_, architecture)) in programs.iter().zip(ARCHITECTURES) {
            let root = user.pull(architecture);
            let pulled = root.join("usr/local/bin/tripod");
            assert_eq!(sum(&pulled), sum(program), "{architecture}");
        }
        user.verify_chart().expect("verifying the chart");
        let chart = format!("tripod-{VERSION}.tgz");
        let pulled = user.folder.join("chart").join(&chart);
        assert_eq!(sum(&pulled), sum(&dist.join(chart)));
    });
}

type Verify = fn(&User) -> Result<(), String>;

/// A file that the commands of the page read.
struct Case {
    name: &'static str,
    verify: Verify,
    file: PathBuf,
    /// The changed byte is the one after this text; without a text, that in the middle.
    text: String,
    /// Part of the resulting output of the commands.
    refusal: &'static str,
}

/// Lists all files that the commands of the page read.
fn cases(user: &User) -> Vec<Case> {
    let json = |file: &Path| -> Value {
        serde_json::from_slice(&fs::read(file).expect("a manifest")).expect("JSON")
    };
    let object = |of: &Value| {
        user.registry
            .object(of["digest"].as_str().expect("a digest"))
    };
    let signature_of = |part, file: &Path| {
        let file = user.manifest(part, &format!("sha256-{}.sig", sum(file)));
        let layer = json(&file)["layers"][0].clone();
        let signature = layer["annotations"]["dev.cosignproject.cosign/signature"].as_str();
        (
            file,
            object(&layer),
            signature.expect("a signature")[..40].to_owned(),
        )
    };
    let index = user.manifest("", &image_tag());
    let image = object(&json(&index)["manifests"][1]);
    let layer = object(&json(&image)["layers"][0]);
    let chart = user.manifest(CHART, VERSION);
    let content = object(&json(&chart)["layers"][0]);
    let (of_image, payload, image_signature) = signature_of("", &index);
    let (of_chart, _, chart_signature) = signature_of(CHART, &chart);
    let file = |name: &str| user.folder.join(name);
    let archive = file(&format!("tripod-{VERSION}.tgz"));
    let digest = "\"sha256:";
    let case = |name, verify: Verify, file, text: &str, refusal| Case {
        name,
        verify,
        file,
        text: text.to_owned(),
        refusal,
    };
    let (files, images, charts) = (User::verify_files, User::verify_image, User::verify_chart);
    let invalid = "Verification failure";
    vec![
        case("a file", files, archive, "", "tgz: FAILED"),
        case("the checksums", files, file("SHA256SUMS"), "", invalid),
        case(
            "their signature",
            files,
            file("SHA256SUMS.sig"),
            "",
            invalid,
        ),
        case("the index", images, index, digest, "manifest unknown"),
        case("the manifest for arm64", images, image, digest, "digest"),
        case("the program for arm64", images, layer, "", "Digest"),
        case("the signed text", images, payload, digest, "Digest"),
        case("the signature", images, of_image, &image_signature, invalid),
        case("the chart", charts, content, "", "digest"),
        case("its signature", charts, of_chart, &chart_signature, invalid),
    ]
}

#[test]
fn no_changed_byte_is_verified() {
    published(|user, _, _, _| {
        let checks = [User::verify_files, User::verify_image, User::verify_chart];
        for check in checks {
            check(user).expect("what was published");
        }
        for case in cases(user) {
            let verified = with_changed_byte(&case.file, &case.text, || (case.verify)(user));
            let error = verified.expect_err(case.name);
            assert!(error.contains(case.refusal), "{}: {error}", case.name);
        }
        for check in checks {
            check(user).expect("what was published, again");
        }
        make_key(&user.folder, "tripod");
        for check in checks {
            check(user).expect_err("the public key is another one");
        }
    });
}

#[test]
fn what_was_changed_is_not_published() {
    published(|user, dist, key, _| {
        let chart = dist.join(format!("tripod-{VERSION}.tgz"));
        let refused = |key: &Path| succeeds(&mut publish(user, dist, key)).expect_err("refused");
        let said = with_changed_byte(&chart, "", || refused(key));
        assert!(said.contains("tgz: FAILED"), "{said}");
        let other = make_key(Path::new(PLACE), "other");
        let said = refused(&other);
        assert!(said.contains("is not a signature by"), "{said}");
    });
}
