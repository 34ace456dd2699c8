"""Debian's Prometheus, on the rules of this repository with a minute as short as one likes."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sluice.testbed.local.children import free_ports
from tests.support.world import wait_for

RULES = Path(__file__).parent.parent.parent / "monitoring" / "alerts.yml"


def shortened(rules: str, minute_seconds: int) -> str:
    """The same rules where a minute, or an hour, takes so long; thresholds in seconds, too."""
    shorter = re.sub(r"\b(\d+)[mh]\b", lambda m: f"{int(m[1]) * minute_seconds}s", rules)
    return re.sub(
        r"(_seconds > )(\d+)\b(?! \*)",
        lambda m: f"{m[1]}{int(m[2]) * minute_seconds // 60}",
        shorter,
    )


@dataclass
class Prometheus:
    """It scrapes one driver, and judges, each second."""

    folder: Path
    target: str
    minute_seconds: int
    port: int = field(default_factory=lambda: free_ports(1)[0])

    def start(self) -> None:
        found = shutil.which("prometheus")
        if found is None:
            pytest.skip("needs Debian's package prometheus: scripts/setup-tests")
        rules = self.folder / "alerts.yml"
        rules.write_text(shortened(RULES.read_text(), self.minute_seconds))
        every = {"scrape_interval": "1s", "evaluation_interval": "1s", "scrape_timeout": "1s"}
        scrape = [{"job_name": "sluice", "static_configs": [{"targets": [self.target]}]}]
        settings = {"global": every, "rule_files": [str(rules)], "scrape_configs": scrape}
        path = self.folder / "prometheus.yml"  # JSON is YAML
        path.write_text(json.dumps(settings))
        words = [f"--config.file={path}", f"--storage.tsdb.path={self.folder / 'data'}"]
        words.append(f"--web.listen-address=127.0.0.1:{self.port}")
        self.log = self.folder / "prometheus.log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen([found, *words], stdout=output, stderr=output)
        wait_for(self.is_ready, 60, "Prometheus' start")

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-2000:]
        try:
            return bool(self.ask("query", query="up")["result"])
        except OSError:
            return False

    def ask(self, what: str, **words: object) -> Any:
        """An answer of its API."""
        query = urllib.parse.urlencode(words)
        url = f"http://127.0.0.1:{self.port}/api/v1/{what}?{query}"
        with urllib.request.urlopen(url, timeout=30) as reply:
            answer = json.load(reply)
        assert answer["status"] == "success", answer
        return answer["data"]

    def firing(self) -> set[str]:
        """The alerts that fire now, with the table that they are about, if they are about one."""
        return {
            " ".join(filter(None, (each["labels"]["alertname"], each["labels"].get("table", ""))))
            for each in self.ask("alerts")["alerts"]
            if each["state"] == "firing"
        }

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)
