"""Images of a real engine: kept by a tag or as an archive, and loaded only as what they say they are."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable

import pytest

from tests.runtime.resources.docker.running import entry, packed
from weft.kernel.enums import ResourceKind, ResourceLiveness
from weft.kernel.errors import ArchiveRefused, EngineObjectMissing, InvalidInput
from weft.runtime.resources.container_engine import ContainerEngine, MadeBy, list_made_by, remove_made
from weft.runtime.resources.engine_volumes import DockerImages, image_id_of
from weft.runtime.resources.tar_archives import IMAGE_ARCHIVE, ArchiveStore, read_archive

Key = Callable[[str], MadeBy]


@pytest.fixture
def images(engine: ContainerEngine, store: ArchiveStore) -> DockerImages:
    return DockerImages(engine, store)


def imported(engine: ContainerEngine, text: str) -> str:
    """An image of one file."""
    archive = packed((entry("file"), text.encode()))
    answer = engine.call(
        "POST", "/images/create", asked="import", query={"fromSrc": "-", "repo": "weft.test/one"}, data=[archive]
    )
    return str(answer["status"])


def test_an_image_is_kept_by_its_id(engine: ContainerEngine, images: DockerImages, image: str, key: Key) -> None:
    described = images.describe("weft.test/busybox:latest")
    assert (described.kind, described.id) == (ResourceKind.DOCKER_IMAGE, image)
    snapshot = images.snapshot("weft.test/busybox:latest", key("keep"))
    assert (snapshot.method, snapshot.reference_kind, snapshot.reference_id) == ("oci_image", "image", image)
    (made,) = list_made_by(engine, resource=key("keep").resource, operation=key("keep").operation)
    assert (made.id, made.name) == (image, key("keep").image_tag)
    assert images.restore(image, key("keep")).id == image
    assert remove_made(engine, made) is True
    assert images.probe(image) is ResourceLiveness.ALIVE, "the tag of the user holds it"
    assert list_made_by(engine, resource=key("keep").resource, operation=key("keep").operation) == ()


def test_an_image_comes_back_from_its_archive(
    engine: ContainerEngine, images: DockerImages, store: ArchiveStore, key: Key
) -> None:
    image_id = imported(engine, "an image that is removed")
    snapshot = images.snapshot(image_id, key("save"), with_archive=True)
    assert (snapshot.method, snapshot.reference_kind) == ("oci_archive", "tar")
    assert images.snapshot(image_id, key("again"), with_archive=True) == snapshot
    assert images.load(snapshot.reference_id, key("load")).is_new is False
    assert images.remove(key("load").image_tag) is True
    assert images.remove("weft.test/one:latest") is True
    assert images.probe(image_id) is ResourceLiveness.DEAD
    with pytest.raises(EngineObjectMissing, match="no image"):
        images.restore(image_id, key("restore"))

    loaded = images.load(snapshot.reference_id, key("load"))
    assert (loaded.id, loaded.is_new, loaded.name) == (image_id, True, key("load").image_tag)
    assert images.describe(image_id).metadata["tags"] == [key("load").image_tag], "no other name was given"
    assert images.remove(loaded.name) is True
    assert images.remove(loaded.name) is False


def test_an_image_is_restored_by_its_id_alone(images: DockerImages, key: Key) -> None:
    with pytest.raises(InvalidInput, match="no id of an image"):
        images.restore("weft.test/busybox:latest", key("restore"))


CONFIG = b"{}"
NAME = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a.json"


def archive(manifest: object, *, config: bytes = CONFIG, more: dict[str, object] | None = None) -> bytes:
    lists = {"manifest.json": manifest, **(more or {})}
    return packed(
        (entry(NAME), config),
        (entry("layer/layer.tar"), packed(entry("x"))),
        *((entry(name), json.dumps(value).encode()) for name, value in lists.items()),
    )


def one(**fields: object) -> list[dict[str, object]]:
    return [{"Config": NAME, "Layers": ["layer/layer.tar"], "RepoTags": None, **fields}]


def test_an_archive_of_one_image_without_a_name_is_taken() -> None:
    made = archive(one(), more={"index.json": {"manifests": [{"digest": "sha256:1"}]}, "repositories": {}})
    entries = read_archive(io.BytesIO(made), IMAGE_ARCHIVE)
    assert image_id_of(entries, io.BytesIO(made)) == f"sha256:{NAME.removesuffix('.json')}"


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (archive(one(RepoTags=["postgres:latest"])), "names its image"),
        (archive(one(), more={"repositories": {"postgres": {"latest": "1"}}}), "names images"),
        (archive(one() * 2), "one image"),
        (archive([]), "one image"),
        (archive({}), "one image"),
        (archive(one(), config=b"{ }"), "not the one that it names"),
        (archive(one(Config="../../etc/passwd")), "not in it"),
        (archive(one(Config="layer")), "not in it"),
        (archive(one(), more={"index.json": {"manifests": [{}, {}]}}), "one image"),
        (archive(one(), more={"index.json": []}), "one image"),
        (
            archive(
                one(),
                more={"index.json": {"manifests": [{"annotations": {"io.containerd.image.name": "postgres"}}]}},
            ),
            "names its image",
        ),
        (packed(entry("x")), "no archive of an image"),
        (packed((entry("manifest.json"), b"[" * 100_000)), "no JSON"),
        (packed(entry("manifest.json", tarfile.SYMTYPE, linkname="x")), "no archive of an image"),
    ],
)
def test_an_archive_of_another_kind_is_refused(made: bytes, why: str) -> None:
    entries = read_archive(io.BytesIO(made), IMAGE_ARCHIVE)
    with pytest.raises(ArchiveRefused, match=why):
        image_id_of(entries, io.BytesIO(made))


def test_an_archive_that_names_its_image_is_not_loaded(
    engine: ContainerEngine, images: DockerImages, store: ArchiveStore, image: str, key: Key
) -> None:
    digest = store.keep("one", [archive(one(RepoTags=["weft.test/busybox:latest"]))], IMAGE_ARCHIVE).digest
    with pytest.raises(ArchiveRefused, match="names its image"):
        images.load(digest, key("load"))
    assert images.describe("weft.test/busybox:latest").id == image
