"""What all scenario models share: strictness, and the types of plain numbers."""

from __future__ import annotations

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from scenarios.errors import located, raised_again, unknown

Count = Annotated[int, Field(strict=True, ge=1)]
CountFromZero = Annotated[int, Field(strict=True, ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Strict(BaseModel):
    """Frozen; an unknown key is an error that names the nearest valid one."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def keys(cls) -> list[str]:
        """The keys that a scenario file may use here."""
        return list(cls.model_fields)

    @model_validator(mode="wrap")
    @classmethod
    def _no_unknown_keys(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        valid = {*cls.model_fields, *cls.keys()}
        wrong = [key for key in data if key not in valid] if isinstance(data, dict) else []
        if not wrong:
            return handler(data)
        problems = located([((key,), unknown("key", key, cls.keys())) for key in wrong])
        errors = [InitErrorDetails(type=problems, loc=(), input=data)]
        known = {key: value for key, value in data.items() if key not in wrong}
        try:
            handler(known)
        except ValidationError as error:
            # What is said of the keys that stand there; that others are missing may follow from the wrong ones.
            errors += [raised_again(line) for line in error.errors() if line["loc"] and line["loc"][0] in known]
        raise ValidationError.from_exception_data(cls.__name__, errors)
