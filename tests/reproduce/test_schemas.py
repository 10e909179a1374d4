"""The stored schemas of PyTorch's operations."""

from __future__ import annotations

from tracelens_ext.reproduce.schemas import Parameter, schema_table


def test_every_stored_schema_can_be_read() -> None:
    table = schema_table()
    assert table.version.count(".") == 2
    overloads = [schema for name in table.lines for schema in table.overloads(name)]
    assert len(overloads) > 3_000


def test_parameters_have_types_and_defaults() -> None:
    (add,) = [
        schema
        for schema in schema_table().overloads("aten::add")
        if schema.overload == "Tensor"
    ]
    assert add.parameters == (
        Parameter("self", "Tensor"),
        Parameter("other", "Tensor"),
        Parameter("alpha", "Scalar", is_keyword=True, has_default=True, default=1),
    )


def test_lists_and_what_may_be_none_are_told_apart() -> None:
    (index,) = [
        schema
        for schema in schema_table().overloads("aten::index")
        if schema.overload == "Tensor"
    ]
    assert index.parameters[1] == Parameter(
        "indices", "Tensor", is_list=True, has_optional_items=True
    )


def test_an_unknown_operation_has_no_overloads() -> None:
    assert schema_table().overloads("aten::no_such_operation") == []
