"""Rules for the contents of input tensors, so that operations accept them.

Values are not recorded. By default, floats are normally distributed, integers are small, and half
of all booleans are true. Some operations need other values: indices within the tensor that they
index, probabilities, ascending offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Final, NamedTuple

from tracelens_ext.reproduce.element_types import TORCH_TYPES, is_quantized, is_whole
from tracelens_ext.reproduce.overloads import BoundCall
from tracelens_ext.reproduce.recorded_values import RecordedTensor, RecordedTensors


class Filling(NamedTuple):
    """How a script creates a tensor."""

    method: str  #: a method of `Inputs` in the script
    options: Mapping[str, object] = {}  #: the keyword arguments of the method
    value: object = None  #: the value of all elements, for the method `constant`


Rule = Callable[[BoundCall, RecordedTensor], Filling]

_NORMAL: Final = Filling("normal")
_SHARE: Final = Filling("share")
_POSITIVE: Final = Filling("positive")
_POSITIVE_DEFINITE: Final = Filling("positive_definite")
_FLOAT_METHODS: Final = ("normal", "positive", "share", "positive_definite")
#: Parameters that index another tensor: they are on its device, even if they are single numbers.
_INDICES: Final = ("index", "indices", "target", "targets", "offsets")


def filling_of(
    call: BoundCall, parameter: str, tensor: RecordedTensor, torch_type: str
) -> Filling:
    """Return how to create the tensor of a parameter."""
    if is_quantized(torch_type):
        return Filling("quantized")
    rule = _rule_of(call, parameter)
    if torch_type == "bool":
        filling = Filling("mask")
    elif is_whole(torch_type):
        filling = Filling("integers")
    else:
        filling = _NORMAL
    if rule is not None:
        filling = rule(call, tensor)
    return _fitting(filling, torch_type)


def list_filling_of(
    call: BoundCall, parameter: str, tensors: RecordedTensors
) -> Filling:
    """Return how to create each tensor of a list, whose types are not recorded."""
    rule = _RULES.get(call.short_name, {}).get(parameter)
    if rule is None or not tensors.tensors:
        return _NORMAL
    return _fitting(rule(call, tensors.tensors[0]), "float32")


def is_index(call: BoundCall, parameter: str) -> bool:
    """Return whether a parameter indexes another tensor of the call."""
    return parameter in _INDICES and _rule_of(call, parameter) is not None


def _rule_of(call: BoundCall, parameter: str) -> Rule | None:
    rule = _RULES.get(call.short_name, {}).get(parameter)
    return rule or _RULES_OF_PARAMETERS.get(parameter)


def _fitting(filling: Filling, torch_type: str) -> Filling:
    """Return a filling, or a similar one that is possible for elements of a type."""
    if torch_type == "bool":
        return filling if filling.method == "mask" else Filling("mask")
    if filling.method == "mask":
        return Filling("integers", {"high": 2}) if is_whole(torch_type) else _NORMAL
    if is_whole(torch_type) and filling.method in _FLOAT_METHODS:
        return Filling("integers", {"low": 1})
    if filling.method == "integers" and not is_whole(torch_type):
        return _NORMAL
    return filling


def always(filling: Filling) -> Rule:
    """Return the rule that always gives the same filling."""

    def rule(_call: BoundCall, _tensor: RecordedTensor) -> Filling:
        return filling

    return rule


def constant(value: object) -> Rule:
    """Return the rule of a tensor with the same value everywhere."""
    return always(Filling("constant", value=value))


def integers(low: int, high: int) -> Rule:
    """Return the rule of integers of at least `low` and less than `high`."""
    return always(Filling("integers", {"low": low, "high": high}))


def _below(limit: int | None) -> Filling:
    """Return integers from 0 to less than a limit; zeros if it is unknown."""
    return Filling("integers", {"high": max(limit or 1, 1)})


def below_size(parameter: str, dimension: int | str) -> Rule:
    """Return the rule of indices along a dimension of the tensor of a parameter.

    Args:
        parameter: the indexed tensor.
        dimension: the dimension, or the parameter whose value is the dimension.
    """

    def rule(call: BoundCall, _tensor: RecordedTensor) -> Filling:
        indexed_dimension: int | None
        if isinstance(dimension, int):
            indexed_dimension = dimension
        else:
            indexed_dimension = call.whole(dimension)
        return _below(call.size(parameter, indexed_dimension))

    return rule


def below_elements(parameter: str, dimensions: int | None = None) -> Rule:
    """Return the rule of indices into the elements of a tensor, or of its last dimensions."""

    def rule(call: BoundCall, _tensor: RecordedTensor) -> Filling:
        tensor = call.tensor(parameter)
        if tensor is None:
            return _below(None)
        sizes = tensor.sizes
        if dimensions is not None:
            sizes = sizes[-dimensions:]
        return _below(prod(sizes))

    return rule


def below_number(parameter: str) -> Rule:
    """Return the rule of integers below another argument."""

    def rule(call: BoundCall, _tensor: RecordedTensor) -> Filling:
        return _below(call.whole(parameter))

    return rule


def below_product(parameter: str) -> Rule:
    """Return the rule of integers below the product of a list."""

    def rule(call: BoundCall, _tensor: RecordedTensor) -> Filling:
        return _below(prod(call.wholes(parameter)))

    return rule


def distinct_below_product(parameter: str) -> Rule:
    """Return the rule of distinct integers below the product of a list."""

    def rule(call: BoundCall, _tensor: RecordedTensor) -> Filling:
        return Filling("distinct", {"high": prod(call.wholes(parameter))})

    return rule


def ascending_to_size(parameter: str, dimension: int, *, from_first: bool) -> Rule:
    """Return the rule of ascending offsets up to the size of a dimension.

    Args:
        parameter: the tensor that the offsets divide.
        dimension: the dimension that they divide.
        from_first: True if the first offset is 0; False if it is the end of the first part.
    """

    def rule(call: BoundCall, tensor: RecordedTensor) -> Filling:
        size = call.size(parameter, dimension) or 0
        count = prod(tensor.sizes)
        low = 0
        if not from_first and count:
            low = size // count
        return Filling("ascending", {"low": low, "high": size})

    return rule


def _ends_of_groups(call: BoundCall, tensor: RecordedTensor) -> Filling:
    """Return the ends of the groups of a grouped product, all of the same size.

    An operand with three dimensions has a matrix for each group. The groups then divide the other
    operand: the rows of `self`, or the columns of `mat2`. If neither operand has three dimensions,
    the groups divide the dimension that the product sums over.
    """
    parameter = "self"
    dimension = -1
    left = call.tensor("self")
    right = call.tensor("mat2")
    if left is not None and len(left.sizes) == 3:
        parameter = "mat2"
    elif right is not None and len(right.sizes) == 3:
        dimension = 0
    return ascending_to_size(parameter, dimension, from_first=False)(call, tensor)


def _offsets_of_bags(call: BoundCall, tensor: RecordedTensor) -> Filling:
    """Return the first index of each bag, before the end of the indices."""
    indices = call.tensor("indices")
    index_count = prod(indices.sizes) if indices is not None else 0
    bag_count = max(prod(tensor.sizes), 1)
    high = index_count - index_count // bag_count
    return Filling("ascending", {"low": 0, "high": high})


def _rows_of_compressed(call: BoundCall, _tensor: RecordedTensor) -> Filling:
    """Return ascending row numbers."""
    rows = call.whole("size") or 1
    return Filling("ascending", {"low": 0, "high": rows - 1})


def _selected_elements(call: BoundCall, tensor: RecordedTensor) -> Filling:
    """Return a mask that selects no more elements than `source` has.

    The mask is broadcast to the sizes of `self`.
    """
    target = call.tensor("self")
    source = call.tensor("source")
    if target is None or source is None:
        return Filling("mask")
    mask_elements = prod(tensor.sizes)
    repeats = max(prod(target.sizes), 1) // max(mask_elements, 1)
    available = prod(source.sizes) // max(repeats, 1)
    return Filling("mask", {"true_count": min(available, mask_elements)})


def _target_classes(call: BoundCall, _tensor: RecordedTensor) -> Filling:
    """Return classes below the size of the second dimension of `self`, or of its only one."""
    scores = call.tensor("self")
    if scores is None or not scores.sizes:
        return _below(None)
    has_batch = len(scores.sizes) > 1
    return _below(scores.sizes[1] if has_batch else scores.sizes[0])


def _pivots(_call: BoundCall, tensor: RecordedTensor) -> Filling:
    """Return pivots that exchange no rows: the number of each row, from 1."""
    size = tensor.sizes[-1] if tensor.sizes else 1
    return Filling("ascending", {"low": 1, "high": size})


def _sorted_numbers(_call: BoundCall, _tensor: RecordedTensor) -> Filling:
    return Filling("ascending", {"low": -2, "high": 2})


def _second_operand(_call: BoundCall, tensor: RecordedTensor) -> Filling:
    """Return a divisor, an exponent or a shift; integers are from 1 to 3."""
    name = TORCH_TYPES.get(tensor.element_type or "", "")
    if not is_whole(name):
        return _NORMAL
    return Filling("integers", {"low": 1, "high": 4})


_INDEX_OF_DIM: Final = {"index": below_size("self", "dim")}
_POSITIVE_SELF: Final = {"self": always(_POSITIVE)}
_SHARE_SELF: Final = {"self": always(_SHARE)}
_DIVISOR: Final[dict[str, Rule]] = {
    "other": _second_operand,
    "exponent": _second_operand,
}
_BINARY_CROSS_ENTROPY: Final = {"self": always(_SHARE), "target": always(_SHARE)}
_ADAM: Final = {
    "exp_avg_sqs": always(_POSITIVE),
    "max_exp_avg_sqs": always(_POSITIVE),
    "state_steps": constant(1.0),
    "lr": constant(0.001),
    "grad_scale": constant(1.0),
    "found_inf": constant(0.0),
}
_CUMULATIVE_SEQUENCES: Final = {
    "cum_seq_q": ascending_to_size("query", 0, from_first=True),
    "cum_seq_k": ascending_to_size("key", 0, from_first=True),
    "cu_seqlens_q": ascending_to_size("query", 1, from_first=True),
    "cu_seqlens_k": ascending_to_size("key", 1, from_first=True),
    "seqused_k": below_size("key", 1),
}

#: Rules of parameters that have the same meaning in all operations.
_RULES_OF_PARAMETERS: Final[dict[str, Rule]] = {
    "running_var": always(_POSITIVE),
    "save_var": always(_POSITIVE),
    "save_invstd": always(_POSITIVE),
    "invstd": always(_POSITIVE),
    "rstd": always(_POSITIVE),
    "total_weight": constant(1.0),
    "scale": always(_POSITIVE),
    "scales": always(_POSITIVE),
    "scale_a": always(_POSITIVE),
    "scale_b": always(_POSITIVE),
    "inv_scale": constant(1.0),
    "found_inf": constant(0.0),
    "growth_tracker": constant(0),
    "zero_point": constant(0),
    "std": always(_POSITIVE),
    "philox_seed": constant(0),
    "philox_offset": constant(0),
    "rng_state": constant(0),
    "unused": constant(0),
    **_CUMULATIVE_SEQUENCES,
}

#: Rules of the parameters of an operation, by its name.
_RULES: Final[dict[str, dict[str, Rule]]] = {
    "index_select": _INDEX_OF_DIM,
    "gather": _INDEX_OF_DIM,
    "scatter": _INDEX_OF_DIM,
    "scatter_add": _INDEX_OF_DIM,
    "scatter_reduce": _INDEX_OF_DIM,
    "index_add": _INDEX_OF_DIM,
    "index_copy": _INDEX_OF_DIM,
    "index_fill": _INDEX_OF_DIM,
    "index_reduce": _INDEX_OF_DIM,
    "take": {"index": below_elements("self")},
    "put": {"index": below_elements("self")},
    "embedding": {"indices": below_size("weight", 0)},
    "embedding_renorm": {"indices": below_size("self", 0)},
    "embedding_dense_backward": {"indices": below_number("num_weights")},
    "embedding_sparse_backward": {"indices": below_number("num_weights")},
    "_embedding_bag": {
        "indices": below_size("weight", 0),
        "offsets": _offsets_of_bags,
    },
    "_embedding_bag_forward_only": {
        "indices": below_size("weight", 0),
        "offsets": _offsets_of_bags,
    },
    "_embedding_bag_dense_backward": {
        "indices": below_number("num_weights"),
        "offset2bag": below_size("grad", 0),
        "bag_size": constant(1),
        "maximum_indices": below_number("num_weights"),
    },
    "_embedding_bag_per_sample_weights_backward": {
        "indices": below_size("weight", 0),
        "offsets": _offsets_of_bags,
        "offset2bag": below_size("grad", 0),
    },
    "nll_loss_forward": {"target": _target_classes},
    "nll_loss2d_forward": {"target": _target_classes},
    "nll_loss_backward": {"target": _target_classes},
    "nll_loss2d_backward": {"target": _target_classes},
    "multi_margin_loss": {"target": _target_classes},
    "multi_margin_loss_backward": {"target": _target_classes},
    "multilabel_margin_loss_forward": {"target": _target_classes},
    "multilabel_margin_loss_backward": {"target": _target_classes},
    "binary_cross_entropy": _BINARY_CROSS_ENTROPY,
    "binary_cross_entropy_backward": _BINARY_CROSS_ENTROPY,
    "_ctc_loss": {"targets": integers(1, 2)},
    "_ctc_loss_backward": {"targets": integers(1, 2)},
    "max_pool2d_with_indices_backward": {"indices": below_elements("self", 2)},
    "max_pool3d_with_indices_backward": {"indices": below_elements("self", 3)},
    "adaptive_max_pool2d_backward": {"indices": below_elements("self", 2)},
    "adaptive_max_pool3d_backward": {"indices": below_elements("self", 3)},
    "fractional_max_pool2d_backward": {"indices": below_elements("self", 2)},
    "fractional_max_pool3d_backward": {"indices": below_elements("self", 3)},
    "fractional_max_pool2d": {"random_samples": always(_SHARE)},
    "fractional_max_pool3d": {"random_samples": always(_SHARE)},
    "max_unpool2d": {"indices": distinct_below_product("output_size")},
    "max_unpool3d": {"indices": distinct_below_product("output_size")},
    "searchsorted": {"sorted_sequence": _sorted_numbers},
    "bucketize": {"boundaries": _sorted_numbers},
    "bernoulli": {"self": always(_SHARE), "p": always(_SHARE)},
    "multinomial": _POSITIVE_SELF,
    "binomial": {"count": integers(1, 10), "prob": always(_SHARE)},
    "poisson": _POSITIVE_SELF,
    "_sample_dirichlet": _POSITIVE_SELF,
    "_standard_gamma": _POSITIVE_SELF,
    "_standard_gamma_grad": _POSITIVE_SELF,
    "linalg_cholesky_ex": {"self": always(_POSITIVE_DEFINITE)},
    "cholesky": {"self": always(_POSITIVE_DEFINITE)},
    "cholesky_inverse": {"self": always(_POSITIVE_DEFINITE)},
    "cholesky_solve": {"input2": always(_POSITIVE_DEFINITE)},
    "_cholesky_solve_helper": {"A": always(_POSITIVE_DEFINITE)},
    "linalg_inv_ex": {"A": always(_POSITIVE_DEFINITE)},
    "_linalg_eigh": {"A": always(_POSITIVE_DEFINITE)},
    "_linalg_solve_ex": {"A": always(_POSITIVE_DEFINITE)},
    "linalg_solve_triangular": {"self": always(_POSITIVE_DEFINITE)},
    "triangular_solve": {"A": always(_POSITIVE_DEFINITE)},
    "lu_unpack": {"LU_pivots": _pivots},
    "linalg_lu_solve": {"LU": always(_POSITIVE_DEFINITE), "pivots": _pivots},
    "linalg_ldl_solve": {"LD": always(_POSITIVE_DEFINITE), "pivots": _pivots},
    "log": _POSITIVE_SELF,
    "log2": _POSITIVE_SELF,
    "log10": _POSITIVE_SELF,
    "log1p": _POSITIVE_SELF,
    "sqrt": _POSITIVE_SELF,
    "rsqrt": _POSITIVE_SELF,
    "pow": {"self": always(_POSITIVE), "exponent": _second_operand},
    "_foreach_sqrt": _POSITIVE_SELF,
    "_foreach_rsqrt": _POSITIVE_SELF,
    "_foreach_log": _POSITIVE_SELF,
    "_foreach_pow": _POSITIVE_SELF,
    "_foreach_addcdiv": {"tensor2": always(_POSITIVE)},
    "_foreach_div": {"other": always(_POSITIVE)},
    "addcdiv": {"tensor2": always(_POSITIVE)},
    "lgamma": _POSITIVE_SELF,
    "digamma": _POSITIVE_SELF,
    "polygamma": _POSITIVE_SELF,
    "igamma": {"self": always(_POSITIVE), "other": always(_POSITIVE)},
    "igammac": {"self": always(_POSITIVE), "other": always(_POSITIVE)},
    "special_zeta": {"self": integers(2, 9), "other": always(_POSITIVE)},
    "acos": _SHARE_SELF,
    "asin": _SHARE_SELF,
    "atanh": _SHARE_SELF,
    "acosh": {"self": constant(1.5)},
    "erfinv": _SHARE_SELF,
    "logit": _SHARE_SELF,
    "special_ndtri": _SHARE_SELF,
    "div": _DIVISOR,
    "floor_divide": _DIVISOR,
    "remainder": _DIVISOR,
    "fmod": _DIVISOR,
    "bitwise_left_shift": _DIVISOR,
    "bitwise_right_shift": _DIVISOR,
    "__lshift__": _DIVISOR,
    "__rshift__": _DIVISOR,
    "_fused_adam": _ADAM,
    "_fused_adamw": _ADAM,
    "_fused_adagrad": {**_ADAM, "state_sums": always(_POSITIVE)},
    "_fused_sgd": _ADAM,
    "_grouped_mm": {"offs": _ends_of_groups},
    "_scaled_grouped_mm": {"offs": _ends_of_groups},
    "_scaled_grouped_mm_v2": {"offs": _ends_of_groups},
    "repeat_interleave": {"repeats": integers(1, 4)},
    "_pack_padded_sequence": {"lengths": constant(1)},
    "bincount": {"self": integers(0, 100)},
    "segment_reduce": {
        "lengths": constant(1),
        "offsets": ascending_to_size("data", 0, from_first=True),
    },
    "masked_scatter": {"mask": _selected_elements},
    "_convert_indices_from_coo_to_csr": {"self": _rows_of_compressed},
}
