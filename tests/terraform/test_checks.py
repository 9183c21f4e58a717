"""All resources and arguments of the HCL exist in the google provider, and all names are defined."""

from collections.abc import Mapping
from pathlib import PurePosixPath

import pytest

from batchyard.provision.terraform.files import MODULES, terraform_files
from terraform.hcl_check import HclModule, flaws, read_module, references
from terraform.schema import ProviderSchema, beta_schema, provider_schema
from terraform.terraform_folder import example

GOOGLE, BETA = provider_schema(), beta_schema()
SCHEMA = ProviderSchema(GOOGLE.made_from, GOOGLE.provider, {**GOOGLE.resources, **BETA.resources})
GOOD = """
variable "name" {
  type        = string
  description = "Its name."
}

resource "google_compute_router" "this" {
  name    = var.name
  network = "default"

  bgp {
    asn = 64514
  }
}
"""
PLANTED = [
    ("asn = 64514", "asn = 64514\n    ans = 1", "google_compute_router.this.bgp: no argument ans"),
    ("asn = 64514", 'advertise_mode = "CUSTOM"', "google_compute_router.this.bgp: asn is required"),
    ("bgp {", "bgp = {", "google_compute_router.this.bgp is a block"),
    ("bgp {", "bgp {\n    asn = 1\n  }\n  bgp {", "google_compute_router.this.bgp may be there once"),
    ('"default"', '["default"]', "google_compute_router.this.network is string"),
    ("name    = var.name", "region = var.name", "google_compute_router.this: name is required"),
    ('network = "default"', 'self_link = "default"', "google_compute_router.this: no argument self_link"),
    ("google_compute_router", "google_compute_rooter", "google_compute_rooter.this: no such resource"),
    ("name    = var.name", 'name    = "yard"', "var.name is used nowhere"),
    ("= var.name", "= var.mane", "var.mane leads nowhere"),
    ('"default"', "google_compute_router.that.network", "google_compute_router.that.network leads nowhere"),
    ('"default"', "module.network.id", "module.network.id leads nowhere"),
    ('  description = "Its name."\n', "", "var.name has no description"),
]


def folders(texts: Mapping[str, str]) -> Mapping[str, HclModule]:
    """The modules of a rendered platform, by folder."""
    result: dict[str, list[str]] = {}
    for path, text in texts.items():
        if path.endswith(".tf"):
            result.setdefault(str(PurePosixPath(path).parent), []).append(text)
    return {folder: read_module(rows) for folder, rows in result.items()}


@pytest.fixture(scope="module")
def modules() -> Mapping[str, HclModule]:
    """The modules of the reference architecture."""
    return folders(terraform_files(example("refarch")))


@pytest.mark.parametrize("folder", ["terraform", "terraform/build", *(f"terraform/modules/{name}" for name in MODULES)])
def test_modules_use_only_existing_arguments_and_names(modules: Mapping[str, HclModule], folder: str) -> None:
    children = {f"./modules/{name}": modules[f"terraform/modules/{name}"] for name in MODULES}
    assert list(flaws(modules[folder], children, SCHEMA)) == []


def test_all_outputs_of_modules_are_used(modules: Mapping[str, HclModule]) -> None:
    used = set(references(modules["terraform"].text))
    outputs = {(name, output) for name in MODULES for output in modules[f"terraform/modules/{name}"].outputs}
    assert [f"module.{name}.{output}" for name, output in sorted(outputs) if ("module", name, output) not in used] == []


@pytest.mark.parametrize(("good", "bad", "reported"), PLANTED)
def test_checker_reports_planted_fault(good: str, bad: str, reported: str) -> None:
    assert list(flaws(read_module([GOOD]), {}, SCHEMA)) == []
    assert reported in list(flaws(read_module([GOOD.replace(good, bad)]), {}, SCHEMA))


@pytest.mark.parametrize(
    ("call", "reported"),
    [
        ('module "m" {\n  source = "./modules/m"\n}', "module.m is not given name"),
        ('module "m" {\n  source = "./modules/m"\n  name = "n"\n  zone = "z"\n}', "module.m has no variable zone"),
    ],
)
def test_checker_reports_module_call_with_wrong_variables(call: str, reported: str) -> None:
    assert list(flaws(read_module([call]), {"./modules/m": read_module([GOOD])}, SCHEMA)) == [reported]


@pytest.mark.parametrize("schema", [GOOGLE, BETA])
def test_schema_matches_pinned_provider_version(schema: ProviderSchema) -> None:
    name, version = schema.made_from["provider"].split()
    pins = terraform_files(example("refarch"))["terraform/versions.tf"]
    assert f'source  = "{name}"\n      version = "{version}"' in pins


def test_google_beta_provides_only_resources_missing_in_google(modules: Mapping[str, HclModule]) -> None:
    resources = [resource for module in modules.values() for resource in module.resources]
    of_beta = {resource.kind for resource in resources if resource.body.get("provider") == "google-beta"}
    assert of_beta == set(BETA.resources) == {"google_compute_future_reservation"}
    assert of_beta.isdisjoint(GOOGLE.resources)
    pinned = [path for path, text in terraform_files(example("refarch")).items() if "hashicorp/google-beta" in text]
    assert pinned == ["terraform/modules/future_reservations/versions.tf", "terraform/versions.tf"]
