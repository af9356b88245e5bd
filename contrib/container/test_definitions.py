#!/usr/bin/env python3
"""Checks the definitions of the container, of compose and of the release: their paths exist, and the command takes its
arguments. Nothing is built or fetched.

Usage: test_definitions.py LOCKKEEPER
"""

import json
import pathlib
import re
import subprocess
import sys
import unittest

import yaml

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
BINARY = pathlib.Path(sys.argv.pop(1)).resolve()


def read(path):
    return yaml.safe_load((HERE / path).read_text())


def instructions():
    """The instructions of the Containerfile, without comments, with their lines joined."""
    text = re.sub(r"^#.*\n", "", (HERE / "Containerfile").read_text(), flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(None, 1)) for line in text.splitlines() if line]


def instruction(name):
    """The last one of a name: that of the image itself."""
    return [rest for word, rest in instructions() if word == name][-1]


class Arguments(unittest.TestCase):
    def check(self, arguments):
        """The arguments of `serve` are valid together; returns what would be served."""
        self.assertEqual(arguments[0], "serve")
        command = [BINARY, *arguments, "--check-config"]
        done = subprocess.run(command, capture_output=True, text=True, cwd="/")
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout


class Containerfile(Arguments):
    def test_what_is_copied_exists(self):
        copied = [rest.split() for word, rest in instructions() if word == "COPY"]
        sources = [path for words in copied if "--from" not in words[0] for path in words[:-1]]
        self.assertGreater(len(sources), 8)
        for path in sources:
            self.assertTrue((ROOT / path).exists(), path)
        members = re.search(r"^members = (\[.*\])", (ROOT / "Cargo.toml").read_text(), re.M)[1]
        for member in json.loads(members):
            self.assertTrue(member == "." or member.split("/")[0] in sources, member)

    def test_the_command_is_served_and_its_ports_are_exposed(self):
        self.assertEqual(json.loads(instruction("ENTRYPOINT")), ["/lockkeeper"])
        said = self.check(json.loads(instruction("CMD")))
        ports = instruction("EXPOSE").split()
        self.assertIn(f"# on 0.0.0.0:{ports[0]}", said)
        self.assertIn(f"# metrics and health on 0.0.0.0:{ports[1]}", said)
        self.assertIn('data = "/data"', said)
        self.assertEqual(json.loads(instruction("VOLUME")), ["/data"])

    def test_the_health_check_is_a_command_of_ours_and_asks_the_right_port(self):
        options, command = instruction("HEALTHCHECK").split(" CMD ")
        path, *arguments = json.loads(command)
        self.assertEqual(path, "/lockkeeper")
        self.assertEqual(arguments[-1], f"--http=127.0.0.1:{instruction('EXPOSE').split()[1]}")
        # 2 would be wrong usage, and docker knows 0 and 1 alone.
        done = subprocess.run([BINARY, *arguments[:-1], "--http=127.0.0.1:1"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("no answer to http://127.0.0.1:1/healthz", done.stderr)
        # Its own limit ends first, so that the reason is in the log of checks.
        self.assertIn("--timeout=6s", options)

    def test_the_user_is_not_root_and_owns_the_data(self):
        user = instruction("USER")
        self.assertRegex(user, r"^[1-9]\d+:[1-9]\d+$")
        folders = [rest.split() for word, rest in instructions() if word == "COPY" and "--chown" in rest]
        self.assertEqual([words[-1] for words in folders], ["/data", "/backups"])
        for words in folders:
            self.assertIn(f"--chown={user}", words)
        self.assertEqual(instruction("FROM"), "scratch")

    def test_the_compiler_is_that_of_ci(self):
        version = re.search(r"rust:(\d+\.\d+)-", (HERE / "Containerfile").read_text())[1]
        self.assertIn(f"toolchain install {version}.", (ROOT / ".github/workflows/release.yml").read_text())


class Compose(Arguments):
    def setUp(self):
        self.compose = read("compose.yml")
        self.services = self.compose["services"]

    def test_the_command_is_served(self):
        service = self.services["lockkeeper"]
        said = self.check(service["command"])
        self.assertIn("# a backup each 60m in /backups, of which 24 are kept", said)
        places = [volume.split(":")[1] for volume in service["volumes"]]
        self.assertEqual(places, ["/data", "/backups"])
        build = service["build"]
        self.assertTrue((HERE / build["context"] / build["dockerfile"]).samefile(HERE / "Containerfile"))

    def test_what_is_mounted_exists(self):
        mounts = [volume for service in self.services.values() for volume in service["volumes"]]
        for mount in mounts:
            source = mount.split(":")[0]
            if source.startswith("."):
                self.assertTrue((HERE / source).is_file(), mount)
            else:
                self.assertIn(source, self.compose["volumes"])

    def test_ports_are_of_this_machine_alone_and_images_have_versions(self):
        for name, service in self.services.items():
            for port in service["ports"]:
                self.assertTrue(port.startswith("127.0.0.1:"), port)
            if name != "lockkeeper":
                self.assertRegex(service["image"], r":v?\d+\.\d+\.\d+$")

    def test_prometheus_scrapes_the_server_and_reads_the_rules(self):
        config = read("prometheus.yml")
        (job,) = config["scrape_configs"]
        metrics = [it for it in self.services["lockkeeper"]["command"] if it.startswith("--metrics-listen=")]
        port = metrics[0].rsplit(":")[-1]
        self.assertEqual(job["static_configs"], [{"targets": [f"lockkeeper:{port}"]}])
        # Those of the alert rules.
        self.assertIn(f'job="{job["job_name"]}"', (ROOT / "contrib/prometheus/alerts.yml").read_text())
        mounted = [volume.split(":")[1] for volume in self.services["prometheus"]["volumes"]]
        for rules in config["rule_files"]:
            self.assertIn(f"/etc/prometheus/{rules}", mounted)

    def test_grafana_finds_its_source_and_its_dashboard(self):
        (source,) = read("grafana/datasource.yml")["datasources"]
        port = self.services["prometheus"]["ports"][0].rsplit(":")[-1]
        self.assertEqual(source["url"], f"http://prometheus:{port}")
        (provider,) = read("grafana/dashboards.yml")["providers"]
        mounted = [volume.split(":")[1] for volume in self.services["grafana"]["volumes"]]
        dashboard = f"{provider['options']['path']}/lockkeeper.json"
        self.assertIn(dashboard, mounted)
        variables = self.services["grafana"]["environment"]
        self.assertEqual(variables["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"], dashboard)


class Release(unittest.TestCase):
    def setUp(self):
        self.text = (ROOT / ".github/workflows/release.yml").read_text()
        self.workflow = yaml.safe_load(self.text)
        self.jobs = self.workflow["jobs"]

    def test_the_steps_are_those_of_the_script(self):
        usage = (ROOT / "contrib/release/build.sh").read_text()
        used = re.findall(r"contrib/release/build\.sh (\w+)", self.text)
        self.assertTrue(used)
        for step in used:
            self.assertRegex(usage, rf"(?m)^#   \S*build\.sh {step}\b")

    def test_rights_are_given_where_they_are_needed_alone(self):
        self.assertEqual(self.workflow["permissions"], {"contents": "read"})
        for name, job in self.jobs.items():
            rights = job.get("permissions", {})
            self.assertTrue(set(rights) <= {"contents", "packages"}, name)
            if "write" in rights.values():
                self.assertFalse(any("cargo" in str(step.get("run")) for step in job["steps"]), name)

    def test_a_tag_alone_releases(self):
        # YAML reads `on` as true.
        self.assertEqual(self.workflow[True], {"push": {"tags": ["v*"]}})
        for job in self.jobs.values():
            self.assertIn("timeout-minutes", job)
            for step in job["steps"]:
                if "uses" in step:
                    self.assertRegex(step["uses"], r"^[\w-]+/[\w-]+@(v\d+|[0-9a-f]{40})$")
                    if step["uses"].startswith("actions/checkout@"):
                        self.assertEqual(step["with"], {"persist-credentials": False})


class Packages(unittest.TestCase):
    def test_what_the_debian_package_installs_exists_or_is_made(self):
        import tomllib

        manifest = tomllib.loads((ROOT / "cli/Cargo.toml").read_text())
        deb = manifest["package"]["metadata"]["deb"]
        made = (ROOT / "contrib/release/build.sh").read_text()
        for source, target, _ in deb["assets"]:
            if source.startswith("target/release/"):
                self.assertEqual(source, "target/release/lockkeeper")
            elif source.startswith("../target/"):
                # A folder of `files`, or the page of `notices`.
                self.assertIn(source.removeprefix("../target/").removeprefix("files/").split("/")[0], made)
            else:
                self.assertTrue((ROOT / "cli" / source).is_file(), source)
        unit = (ROOT / "contrib/systemd/lockkeeper.service").read_text()
        for path in deb["conf-files"]:
            self.assertIn(f"LoadCredential=config:{path}", unit)
            self.assertIn(path.removeprefix("/"), [target for _, target, _ in deb["assets"]])

    def test_the_configuration_that_is_installed_is_valid(self):
        file = ROOT / "contrib/debian/lockkeeper.toml"
        done = subprocess.run([BINARY, "serve", "--check-config", "--config", file], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        # Each example that is a comment is valid as well.
        text = re.sub(r"^#(?=[\w-]+ = )", "", file.read_text(), flags=re.M)
        command = [BINARY, "serve", "--check-config", "--config", "/dev/stdin"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
