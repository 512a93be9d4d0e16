"""Settings: one place, one precedence: flag > environment (CIDERMILL_*) > TOML file > default."""

import difflib
import os
import sys
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
    TomlConfigSettingsSource,
)

from api.acceptance import AcceptanceRule
from api.dataset.sentences import reason_of
from api.errors import InputError
from api.schemas import NamedProfile, Profile
from api.url_file import read_url_file

CONFIG_PATH_VARIABLE = "CIDERMILL_CONFIG"

_PROFILES_EXAMPLE = '{"reasoning": {"temperature": 1.0}}'


def default_data_dir() -> Path:
    """Where the ledger, converted models and the private server's files live."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "cidermill"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "cidermill"


def config_path() -> Path:
    """The TOML file: $CIDERMILL_CONFIG, else ~/.config/cidermill/config.toml."""
    named = os.environ.get(CONFIG_PATH_VARIABLE)
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "cidermill" / "config.toml"


class Settings(BaseSettings):
    """Every setting of every command. `cidermill config` shows each value and where it came from."""

    model_config = SettingsConfigDict(
        env_prefix="CIDERMILL_", extra="forbid", validate_default=True, allow_inf_nan=False
    )

    redis_url: SecretStr | None = Field(
        None, description="Redis of the fleet (redis://, rediss:// or unix://); unset: a private server on this machine"
    )
    data_dir: Path = Field(default_factory=default_data_dir, description="ledger, converted models, private server")
    redis_url_file: Path | None = Field(
        None,
        description="file of mode 0600 with that URL, used where redis_url is unset; ssl_ca_certs in it counts from "
        "the file's folder",
    )
    model: str = Field("smollm2", description="model of new batches and of workers: NAME[@DTYPE]")
    drafter: str = Field(
        "auto",
        description="who guesses the next tokens: auto, none, or suffix, mtp and drafters' checkpoints joined by +, "
        "each with options, as in mtp:depth=4",
    )
    adopt: Literal["matched", "measured"] = Field(
        "matched",
        description="when a worker uses its drafter, as far as it pays: matched: at once, but one that was made for "
        "another model only after cidermill bench found it worth it on this machine; measured: any only after that",
    )
    default_max_tokens: int = Field(1024, ge=1, description="cap on completion tokens where a request names none")
    max_tree_nodes: int = Field(16, ge=1, le=32, description="largest draft tree; 1 turns speculation off")
    prefill_chunk: int = Field(2048, ge=1, description="prompt tokens in one prefill pass")
    acceptance: str | None = Field(
        None, description="acceptance rule where a request names none: lossless, or ratio:theta=0.3; unset: lossless"
    )
    memory_limit_gb: float | None = Field(
        None,
        gt=0,
        description="GB (2^30 bytes) that a model and its drafter may take; unset: what the device gives them",
    )
    prefix_cache_mb: int | None = Field(
        None,
        ge=0,
        description="MB (2^20 bytes) for snapshots of prompts, so that a shared prefix is prefilled once; "
        "unset: a quarter of what the weights leave",
    )
    kernels: Literal["auto", "off"] = Field(
        "auto", description="auto: the kernels that run on a machine and gain there; off: MLX's own operations alone"
    )
    batch_memory: bool = Field(True, description="whether earlier answers of a batch help to guess later ones")
    log_format: Literal["text", "json"] = Field(
        "text", description="how worker and record log: lines for people, or a JSON object a line"
    )
    lease_seconds: float = Field(45, ge=2, description="silence after which a worker's request goes to another worker")
    heartbeat_seconds: float = Field(5, gt=0, description="time between a worker's signs of life")
    max_attempts: int = Field(2, ge=1, description="workers that a request may lose before it is set aside")
    deaths_in_a_row: int = Field(
        3,
        ge=0,
        le=10,
        description="workers that die on a machine in a row before it takes no more requests; 0: any number may",
    )
    request_timeout_seconds: float = Field(3600, gt=0, description="wall time of one request at most")
    max_line_bytes: int = Field(8 * 2**20, ge=1024, description="longest input line")
    profiles: dict[str, Profile] = Field(
        default_factory=dict, description="named sampling values, tables [profiles.NAME], for run and submit --profile"
    )

    @field_validator("acceptance")
    @classmethod
    def _known_rule(cls, rule: str | None) -> str | None:
        if rule is not None:
            AcceptanceRule.parse(rule)
        return rule

    @field_validator("data_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        """Other processes, with other working directories, are told of it."""
        return path.expanduser().absolute()

    @model_validator(mode="after")
    def _beats_within_a_lease(self) -> Self:
        """One heartbeat that is late must not cost a worker its request."""
        if 2 * self.heartbeat_seconds > self.lease_seconds:
            raise ValueError(
                f"heartbeat_seconds {self.heartbeat_seconds:g} is more than half of lease_seconds "
                f"{self.lease_seconds:g}; lower the one or raise the other"
            )
        return self

    @property
    def effective_redis_url(self) -> SecretStr | None:
        """redis_url, else what redis_url_file holds. Raises InputError for a file that cannot be used."""
        if self.redis_url is None and self.redis_url_file is not None:
            return read_url_file(self.redis_url_file.expanduser())
        return self.redis_url

    @property
    def ledger_path(self) -> Path:
        return self.data_dir / "ledger.sqlite3"

    @property
    def models_dir(self) -> Path:
        return self.data_dir / "models"

    def profile(self, name: str) -> NamedProfile:
        """The profile of that name, as it travels with requests. Raises InputError, which lists the names there are."""
        if name in self.profiles:
            return NamedProfile(name=name, **self.profiles[name].model_dump(exclude_none=True))
        there = f"there are {', '.join(sorted(self.profiles))}" if self.profiles else "there are none"
        raise InputError(f"no profile {name!r}; {there} (a profile is a table [profiles.NAME] in {config_path()})")

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, config_path())


class SettingOrigin(BaseModel):
    """One row of `cidermill config`."""

    name: str
    value: str
    source: str
    description: str


def load_settings(**flags: Any) -> Settings:
    """Settings with `flags` on top; a flag that is None was not given.

    Raises InputError that names the setting, its source, and its value unless that is secret.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return Settings(**given)
    except ValidationError as error:
        raise InputError(_refusal(error.errors()[0], given)) from error
    except SettingsError as error:
        raise InputError(_not_json(error)) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{config_path()}: cannot be read as TOML: {error}") from error


def explain_settings(settings: Settings, **flags: Any) -> list[SettingOrigin]:
    """Each setting with its value (secrets redacted) and the source that won."""
    given = {name: value for name, value in flags.items() if value is not None}
    return [
        SettingOrigin(
            name=name,
            value=_shown(getattr(settings, name)),
            source=_source_of(name, given),
            description=field.description or "",
        )
        for name, field in Settings.model_fields.items()
    ]


def _refusal(detail: ErrorDetails, flags: dict[str, Any]) -> str:
    """The setting by its full name, such as profiles.reasoning.top_p, where it comes from, and what is wrong."""
    path = [str(part) for part in detail["loc"]]
    problem = _problem(detail, path)
    return f"setting {'.'.join(path)} ({_source_of(path[0], flags)}): {problem}" if path else f"settings: {problem}"


def _problem(detail: ErrorDetails, path: list[str]) -> str:
    of_profile = path[:1] == ["profiles"]
    if detail["type"] == "extra_forbidden":
        if of_profile:
            return f"a profile has no such value; it has {', '.join(Profile.model_fields)}"
        near = difflib.get_close_matches(path[-1], Settings.model_fields, n=1)
        way_out = f"did you mean {near[0]}?" if near else f"there are {', '.join(Settings.model_fields)}"
        return f"there is no such setting; {way_out}"
    # What is no URL can still be a password.
    problem = "string expected" if path == ["redis_url"] else reason_of(detail)
    return f"{problem}; a profile is a table [profiles.NAME]" if of_profile and len(path) < 3 else problem


def _not_json(error: SettingsError) -> str:
    """The environment gives the one setting that is not plain text, `profiles`, as JSON."""
    assert error.__cause__ is not None
    reason = str(error.__cause__).partition(":")[0].lower()
    return f"setting profiles (environment): is not JSON ({reason}); it goes like {_PROFILES_EXAMPLE}"


def _shown(value: object) -> str:
    if value is None or value == {}:
        return "(unset)"
    if isinstance(value, dict):
        return "\n".join(f"{name}: {profile.model_dump_json(exclude_none=True)}" for name, profile in value.items())
    if isinstance(value, SecretStr):
        from api.queue.connection import redacted

        return redacted(value.get_secret_value())
    return str(value)


def _source_of(name: str, flags: dict[str, Any]) -> str:
    if name in flags:
        return "flag"
    if any(variable.upper() == f"CIDERMILL_{name.upper()}" for variable in os.environ):
        return "environment"
    path = config_path()
    if path.is_file():
        import tomllib

        try:
            if name in tomllib.loads(path.read_text("utf-8")):
                return str(path)
        except (OSError, ValueError):
            return str(path)
    return "default"
