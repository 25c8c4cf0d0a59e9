"""`kneematch serve` against Orthanc and dcmtk: films in, objects in the right study, each once."""

import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pydicom
import pytest
import requests
from pydicom.dataelem import DataElement
from pydicom.uid import generate_uid

from kneematch import Detector
from kneephantoms import SynthConfig, synthesize
from servers import Node, Orthanc, eventually, free_port, tool

SR, CAPTURE = "SR", "OT"


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Films of different studies, whose headers name patients."""
    folder = tmp_path_factory.mktemp("films")
    synthesize(folder, SynthConfig(12, size=(300, 250), framing="knee", workers=0))
    for path in (paths := sorted(folder.glob("*.dcm"))):
        dataset = pydicom.dcmread(path)
        dataset.PatientName, dataset.PatientID = "Secret^Name", "secret-id"
        dataset.save_as(path)
    return paths


@pytest.fixture(scope="module")
def orthanc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orthanc]:
    server = Orthanc(tmp_path_factory.mktemp("orthanc"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, orthanc: Orthanc) -> Iterator[Node]:
    """A node that sends by C-STORE and by STOW-RS."""
    options = "--send-to", orthanc.receiver, "--send-to", f"{orthanc.url}/dicom-web"
    server = Node(tmp_path_factory.mktemp("node"), *options, "--accept", "TESTER")
    yield server
    server.stop(signal.SIGKILL)


def study_of(film: Path) -> str:
    return str(pydicom.dcmread(film, stop_before_pixels=True).StudyInstanceUID)


def modalities(orthanc: Orthanc, film: Path) -> list[str]:
    study = study_of(film)
    return sorted(each["modality"] for each in orthanc.instances() if each["study"] == study)


def examine(node: Node, film: Path, options: tuple[str, ...] = ()) -> dict[str, int]:
    """Send a film, and return how many films more were examined, by state."""
    before = Counter(node.films())
    assert node.send(film, options=options) == 0
    eventually(lambda: node.done(before.total() + 1), "the film is examined")
    return dict(Counter(node.films()) - before)


def test_node_answers_echo_and_refuses_senders_that_are_not_listed(
    node: Node, films: list[Path]
) -> None:
    echo = [tool("echoscu"), "-aec", "KNEEMATCH", "127.0.0.1", str(node.port)]
    assert subprocess.run([*echo, "-aet", "TESTER"], check=False).returncode == 0
    assert subprocess.run([*echo, "-aet", "OTHER"], capture_output=True, check=False).returncode
    before = node.films()
    assert node.send(films[0], aet="OTHER") != 0
    assert node.films() == before


@pytest.mark.parametrize(
    ("number", "recoded", "options"),
    [
        (0, [], ()),
        (1, ["dcmcjpeg"], ("-xs",)),
        (2, ["dcmcjpls"], ("-xt",)),
        (3, ["dcmcrle"], ("-xr",)),
        (4, ["dcmconv", "+ti"], ("-xi",)),
        (7, ["dcmconv", "+td"], ("-xd",)),  # deflated, which the sender then undoes
    ],
)
def test_node_sends_objects_to_the_study_of_each_film(
    tmp_path: Path,
    node: Node,
    orthanc: Orthanc,
    films: list[Path],
    number: int,
    recoded: list[str],
    options: tuple[str, ...],
) -> None:
    film = films[number]
    if recoded:
        command = [tool(recoded[0]), *recoded[1:], film, tmp_path / "film.dcm"]
        subprocess.run(command, check=True)
        film = tmp_path / "film.dcm"
    assert examine(node, film, options) == {"ok": 1}
    assert node.send(film, options=options) == 0  # again: it is acknowledged, and no more
    assert modalities(orthanc, film) == sorted([SR, CAPTURE])
    find = [tool("findscu"), "-S", "-aec", "ORTHANC", "127.0.0.1", str(orthanc.dicom)]
    find += ["-k", "QueryRetrieveLevel=SERIES", "-k", f"StudyInstanceUID={study_of(film)}"]
    find += ["-k", "Modality", "-k", "PatientID"]
    done = subprocess.run(find, capture_output=True, text=True, check=True)
    assert (done.stdout + done.stderr).count("secret-id") == 2


def test_node_does_not_examine_its_own_pictures(
    tmp_path: Path, node: Node, orthanc: Orthanc, films: list[Path]
) -> None:
    assert examine(node, films[5]) == {"ok": 1}
    query = {"Modality": CAPTURE, "StudyInstanceUID": study_of(films[5])}
    find = {"Level": "Instance", "Query": query}
    (picture,) = requests.post(f"{orthanc.url}/tools/find", json=find, timeout=30).json()
    own = tmp_path / "own.dcm"
    own.write_bytes(requests.get(f"{orthanc.url}/instances/{picture}/file", timeout=30).content)
    assert examine(node, own) == {"own": 1}
    assert len(modalities(orthanc, films[5])) == 2


def test_node_reports_films_that_it_cannot_use_or_that_show_no_frontal_knee(
    tmp_path: Path, node: Node, orthanc: Orthanc, films: list[Path]
) -> None:
    dataset = pydicom.dcmread(films[0])
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid()
    dataset.PixelData = bytes(len(dataset.PixelData))  # all pixels are equal
    dataset.save_as(tmp_path / "grey.dcm")
    assert examine(node, tmp_path / "grey.dcm") == {"failed": 1}
    assert "Every pixel has the value" in node.text()
    synthesize(tmp_path / "other", SynthConfig(1, size=(300, 250), framing="other", workers=0))
    (film,) = (tmp_path / "other").glob("*.dcm")
    assert examine(node, film) == {"no_knee": 1}
    assert modalities(orthanc, film) == [SR]


def test_node_says_nothing_of_headers(node: Node, orthanc: Orthanc, films: list[Path]) -> None:
    health = requests.get(f"{node.url}/health", timeout=30).text
    stored = [path for path in (node.folder / "queue").rglob("*") if path.is_file()]
    assert [path.name for path in stored if path.name.endswith(".dcm")] == []
    said = health + node.text() + "".join(path.read_text(errors="replace") for path in stored)
    for text in ("Secret", "secret-id", study_of(films[0])):
        assert text not in said


def test_node_says_nothing_of_values_that_do_not_keep_to_the_standard(
    tmp_path: Path, node: Node, orthanc: Orthanc, films: list[Path]
) -> None:
    dataset = pydicom.dcmread(films[6])
    longer = DataElement("PatientName", "PN", "x" * 65, validation_mode=pydicom.config.IGNORE)
    dataset["PatientName"] = longer  # than names may be
    dataset.save_as(tmp_path / "film.dcm")
    assert examine(node, tmp_path / "film.dcm") == {"ok": 1}
    assert len(modalities(orthanc, films[6])) == 2
    assert "Warning" not in node.text()


def post(node: Node, content: bytes, **headers: str | bytes) -> requests.Response:
    return requests.post(f"{node.url}/detect", content, headers=headers, timeout=60)


def test_post_detect_returns_knees(node: Node, films: list[Path]) -> None:
    found = post(node, films[0].read_bytes()).json()
    assert found["status"] == "ok"
    assert [knee["laterality"] for knee in found["knees"]] == ["R", "L"]
    knees = Detector.load(device="cpu").detect(films[0])
    for knee, shown in zip(knees, found["knees"], strict=True):
        np.testing.assert_allclose(shown["corners"], knee.corners, atol=0.1)
    assert list((node.folder / "queue" / "films").iterdir()) == []


def test_post_detect_refuses_what_it_cannot_use(node: Node) -> None:
    answer = post(node, b"no film")
    assert (answer.status_code, "neither DICOM nor" in answer.text) == (422, True)
    assert post(node, b"no film", Host="other.example").status_code == 403
    assert post(node, b"no film", **{"Sec-Fetch-Site": "cross-site"}).status_code == 403


def begin(node: Node, content: bytes) -> socket.socket:
    """Begin a request of which only a part is sent."""
    connection = socket.create_connection(("127.0.0.1", int(node.url.rsplit(":", 1)[1])))
    head = b"POST /detect HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
    connection.sendall(head + content)
    return connection


def test_post_detect_survives_requests_that_break_off(node: Node, films: list[Path]) -> None:
    for _ in range(20):  # more than may be examined at once
        with begin(node, b"a part of a film"):
            pass
    eventually(lambda: post(node, films[0].read_bytes()).ok, "a request is answered")
    eventually(lambda: not list((node.folder / "queue" / "films").iterdir()), "files are removed")
    assert "Traceback" not in node.text()


def test_post_detect_ends_requests_that_stall(tmp_path: Path, films: list[Path]) -> None:
    node = Node(
        tmp_path, first="from kneematch.serve import http; http.BODY_S, http.SHUTDOWN_S = 1.0, 1"
    )
    stalled = [begin(node, b"a part of a film") for _ in range(16)]  # all that may be examined
    for connection in stalled:
        assert b" 408 " in connection.recv(100)
        connection.close()
    assert post(node, films[0].read_bytes()).ok
    with begin(node, b"a part of a film"):
        assert node.stop() == 0
    assert "Traceback" not in node.text()


def test_node_survives_kills_of_itself_and_of_its_receiver(
    tmp_path: Path, films: list[Path]
) -> None:
    """Four senders repeat what was not acknowledged, as a PACS does; each film counts once."""
    (tmp_path / "node").mkdir()
    (tmp_path / "orthanc").mkdir()
    orthanc = Orthanc(tmp_path / "orthanc")
    node = Node(tmp_path / "node", "--send-to", orthanc.receiver)
    orthanc.stop(signal.SIGKILL)

    def send(part: list[Path]) -> None:
        for film in part:
            eventually(lambda film=film: node.send(film) == 0, "a film is acknowledged")

    senders = [threading.Thread(target=send, args=[films[k::4]]) for k in range(4)]
    for sender in senders:
        sender.start()
    eventually(lambda: node.films().get("ok", 0) > 0, "a film is examined")
    node.stop(signal.SIGKILL)
    node.start()
    for sender in senders:
        sender.join()
    assert node.stop(signal.SIGTERM) == 0
    orthanc.start()
    node.start()  # it has what the receiver did not get
    eventually(lambda: node.done(len(films)), "all films are delivered")
    assert node.films() == {"ok": len(films)}
    stored = Counter(each["study"] for each in orthanc.instances())
    assert stored == {study_of(film): 2 for film in films}
    assert node.stop(signal.SIGTERM) == 0
    assert "Traceback" not in node.text()
    orthanc.stop()


def test_node_answers_beside_more_connections_than_it_keeps(tmp_path: Path) -> None:
    node = Node(tmp_path, first="from kneematch import connections; connections.IDLE_S = 1")
    place = "127.0.0.1", int(node.url.rsplit(":", 1)[1])
    idle = [socket.create_connection(place) for _ in range(200)]
    for connection in idle:
        connection.settimeout(60)
        with connection, suppress(ConnectionResetError):
            assert connection.recv(1) == b""  # the node has closed it
    assert post(node, b"no film").status_code == 422
    assert node.stop() == 0


@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="there is no IPv6")
def test_node_listens_by_ipv6(tmp_path: Path) -> None:
    node = Node(tmp_path, "--host", "::1", address="[::1]")
    assert post(node, b"no film").status_code == 422
    with socket.create_connection(("::1", node.port)) as stalled:
        stalled.sendall(b"\x01\x00\x00")  # half a head: the node can still end
        assert node.stop() == 0


def certificate(folder: Path) -> tuple[str, str]:
    """Make a key and a certificate for 127.0.0.1 that signs itself."""
    key, cert = str(folder / "key.pem"), str(folder / "cert.pem")
    command = [tool("openssl"), "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return key, cert


def test_node_speaks_tls_asks_for_a_token_and_delivers_to_storescp(
    tmp_path: Path, films: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    key, cert = certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", cert)
    port, received = free_port(), tmp_path / "received"
    received.mkdir()
    scp = [tool("storescp"), "+tls", key, cert, "+cf", cert, "-od", received, str(port)]
    (tmp_path / "token").write_text("ein Schlüssel, der lang ist", "utf-8")
    options = ["--send-to", f"tls:STORE@127.0.0.1:{port}", "--objects", "sr"]
    options += ["--token-file", str(tmp_path / "token"), "--host", "0.0.0.0"]
    node = Node(tmp_path, "--tls-cert", cert, "--tls-key", key, "--tls-ca", cert, *options)
    receiver = subprocess.Popen(scp, stderr=subprocess.DEVNULL)
    try:
        silent = socket.create_connection(("127.0.0.1", node.port))  # others are answered beside it
        assert node.send(films[0]) != 0  # without TLS
        assert node.send(films[0], options=("+tls", key, cert, "+cf", cert)) == 0
        eventually(lambda: list(received.iterdir()), "the report arrives")
        for token, status in (("", 401), ("another", 401), ("ein Schlüssel, der lang ist", 422)):
            answer = post(node, b"no film", Authorization=f"Bearer {token}".encode())
            assert answer.status_code == status
        assert node.stop(signal.SIGTERM) == 0
        silent.close()
    finally:
        receiver.kill()
        receiver.wait()
        node.process.kill()
