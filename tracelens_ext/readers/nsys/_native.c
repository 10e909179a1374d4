/* Reports of Nsight Systems: LZ4 blocks and lists of protobuf messages, as compiled code.

   `unpack` does what `lz4_block.unpack_in_python` does, and `decode` what
   `protobuf.decode_in_python` does, with the same result on every input; both return None where the
   input is damaged, and run without the GIL.

   Nothing is read beyond the end of the input, and memory is allocated only for sizes that were
   checked. Messages nest as deep as the plan says: a message of the plan holds only later ones. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef const uint8_t *Ptr;

/* Wire types, and what a field becomes: as in `protobuf.py`. */
enum { VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5 };
enum { IGNORED = -2, CHILDREN = 1000, TEXTS = 2000 };
enum { LIST_TAG = 0x0A, MOST_MESSAGES = 64, MINIMUM_MATCH = 4, LONG_LENGTH = 15 };

/* ---- LZ4 ---- */

/* Adds the bytes of a long length; false where the input ends. */
static bool add_length(Ptr *at, Ptr end, size_t *length) {
    uint8_t more;
    do {
        if (*at >= end) return false;
        more = *(*at)++;
        *length += more;
    } while (more == 255);
    return true;
}

static bool unpack_block(Ptr at, Ptr end, uint8_t *to, size_t size) {
    size_t done = 0;
    while (at < end) {
        uint8_t token = *at++;
        size_t literals = token >> 4;
        if (literals == LONG_LENGTH && !add_length(&at, end, &literals)) return false;
        if (literals > (size_t)(end - at) || literals > size - done) return false;
        memcpy(to + done, at, literals);
        done += literals;
        at += literals;
        if (at == end) break; /* the last sequence has no match */
        if (end - at < 2) return false;
        size_t offset = (size_t)at[0] | (size_t)at[1] << 8;
        at += 2;
        size_t length = token & 15;
        if (length == LONG_LENGTH && !add_length(&at, end, &length)) return false;
        length += MINIMUM_MATCH;
        if (!offset || offset > done || length > size - done) return false;
        uint8_t *target = to + done;
        Ptr source = target - offset;
        if (offset >= length) {
            memcpy(target, source, length);
        } else { /* the match overlaps itself */
            for (size_t i = 0; i < length; i++) target[i] = source[i];
        }
        done += length;
    }
    return done == size;
}

/* unpack(packed, size): the bytes, or None */
static PyObject *unpack(PyObject *module, PyObject *args) {
    const char *packed;
    Py_ssize_t length, size;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#n", &packed, &length, &size)) return NULL;
    if (size < 0 || size / 255 > length) Py_RETURN_NONE;
    PyObject *unpacked = PyBytes_FromStringAndSize(NULL, size);
    if (!unpacked) return NULL;
    uint8_t *to = (uint8_t *)PyBytes_AsString(unpacked);
    bool good;
    Py_BEGIN_ALLOW_THREADS
    good = unpack_block((Ptr)packed, (Ptr)packed + length, to, (size_t)size);
    Py_END_ALLOW_THREADS
    if (good) return unpacked;
    Py_DECREF(unpacked);
    Py_RETURN_NONE;
}

/* ---- Protobuf ---- */

typedef struct {
    Ptr data;               /* where texts are counted from */
    const int16_t *actions; /* (messages, fields) */
    int messages, fields;
    size_t rows;
    int64_t *values;  /* (columns, rows) */
    int64_t *unknown; /* (messages, fields) */
    uint64_t seen;    /* messages of the plan that were in this row */
} Decoding;

/* A number modulo 2**64; NULL where it does not end in time. */
static Ptr read_varint(Ptr at, Ptr end, uint64_t *value) {
    if (at < end && *at < 0x80) {
        *value = *at;
        return at + 1;
    }
    uint64_t sum = 0;
    for (int shift = 0; shift < 70 && at < end; shift += 7) {
        uint8_t byte = *at++;
        sum |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = sum;
            return at;
        }
    }
    return NULL;
}

static bool read_message(Decoding *decoding, int message, size_t row, Ptr at, Ptr end) {
    const int16_t *actions = decoding->actions + (size_t)message * (size_t)decoding->fields;
    int64_t *unknown = decoding->unknown + (size_t)message * (size_t)decoding->fields;
    while (at < end) {
        uint64_t tag, value = 0;
        if (!(at = read_varint(at, end, &tag))) return false;
        if (tag >> 32 || tag < 8) return false;
        uint64_t number = tag >> 3;
        if (number >= (uint64_t)decoding->fields) number = (uint64_t)decoding->fields - 1;
        int action = actions[number];
        switch (tag & 7) {
        case VARINT:
            if (!(at = read_varint(at, end, &value))) return false;
            if (action >= 0 && action < CHILDREN)
                decoding->values[(size_t)action * decoding->rows + row] = (int64_t)value;
            else if (action != IGNORED)
                unknown[number]++;
            continue;
        case BYTES:
            if (!(at = read_varint(at, end, &value))) return false;
            if (value > (uint64_t)(end - at)) return false;
            break;
        case FIXED64: value = 8; break;
        case FIXED32: value = 4; break;
        default: return false;
        }
        if (value > (uint64_t)(end - at)) return false;
        bool is_bytes = (tag & 7) == BYTES;
        if (is_bytes && action >= TEXTS) {
            int64_t *where = decoding->values + (size_t)(action - TEXTS) * decoding->rows + row;
            where[0] = at - decoding->data;
            where[decoding->rows] = (int64_t)value;
        } else if (is_bytes && action >= CHILDREN) {
            int child = action - CHILDREN;
            if (decoding->seen >> child & 1) return false;
            decoding->seen |= UINT64_C(1) << child;
            if (!read_message(decoding, child, row, at, at + value)) return false;
        } else if (action != IGNORED) {
            unknown[number]++;
        }
        at += value;
    }
    return true;
}

/* The messages of a list, and where the first begins; NULL where it is damaged. */
static Ptr count_items(Ptr at, Ptr end, size_t most, size_t *count) {
    uint64_t length;
    if (!(at = read_varint(at, end, &length)) || length != (uint64_t)(end - at)) return NULL;
    Ptr first = at;
    *count = 0;
    while (at < end) {
        if (*at != LIST_TAG || *count == most) return NULL;
        if (!(at = read_varint(at + 1, end, &length))) return NULL;
        if (length > (uint64_t)(end - at)) return NULL;
        at += length;
        ++*count;
    }
    return first;
}

static bool read_list(Decoding *decoding, Ptr at, Ptr end) {
    for (size_t row = 0; at < end; row++) {
        uint64_t length;
        at = read_varint(at + 1, end, &length);
        decoding->seen = 0;
        if (!read_message(decoding, 0, row, at, at + length)) return false;
        at += length;
    }
    return true;
}

/* Whether the actions stay within the columns and go to later messages only. */
static bool is_sound(const Decoding *decoding, int columns) {
    for (int i = 0; i < decoding->messages * decoding->fields; i++) {
        int action = decoding->actions[i], message = i / decoding->fields;
        if (action >= TEXTS) {
            if (action - TEXTS + 1 >= columns) return false;
        } else if (action >= CHILDREN) {
            int child = action - CHILDREN;
            if (child <= message || child >= decoding->messages) return false;
        } else if (action >= columns || action < IGNORED) {
            return false;
        }
    }
    return true;
}

/* decode(data, actions, fields, columns, missing, most rows): (rows, columns, unknown), or None */
static PyObject *decode(PyObject *module, PyObject *args) {
    const char *data, *actions;
    Py_ssize_t length, actions_length, most;
    int fields, columns;
    long long missing;
    (void)module;
    if (!PyArg_ParseTuple(args, "y#y#iiLn", &data, &length, &actions, &actions_length, &fields,
                          &columns, &missing, &most))
        return NULL;
    Decoding decoding = {.data = (Ptr)data, .actions = (const int16_t *)actions, .fields = fields};
    if (fields > 0 && fields < 1 << 12)
        decoding.messages = (int)(actions_length / (Py_ssize_t)(fields * sizeof(int16_t)));
    if (decoding.messages < 1 || decoding.messages > MOST_MESSAGES || columns < 1 ||
        columns > CHILDREN || most < 0 || !is_sound(&decoding, columns)) {
        PyErr_SetString(PyExc_ValueError, "a plan beyond the limits");
        return NULL;
    }
    Ptr end = (Ptr)data + length;
    Ptr first;
    Py_BEGIN_ALLOW_THREADS
    first = count_items((Ptr)data, end, (size_t)most, &decoding.rows);
    Py_END_ALLOW_THREADS
    if (!first) Py_RETURN_NONE;
    size_t cells = (size_t)columns * decoding.rows;
    size_t counters = (size_t)decoding.messages * (size_t)fields;
    PyObject *values = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(cells * sizeof(int64_t)));
    PyObject *unknown = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(counters * sizeof(int64_t)));
    PyObject *answer = NULL;
    if (values && unknown) {
        decoding.values = (int64_t *)PyBytes_AsString(values);
        decoding.unknown = (int64_t *)PyBytes_AsString(unknown);
        bool good;
        Py_BEGIN_ALLOW_THREADS
        for (size_t i = 0; i < cells; i++) decoding.values[i] = missing;
        memset(decoding.unknown, 0, counters * sizeof(int64_t));
        good = read_list(&decoding, first, end);
        Py_END_ALLOW_THREADS
        if (good) {
            answer = Py_BuildValue("nOO", (Py_ssize_t)decoding.rows, values, unknown);
        } else {
            Py_INCREF(Py_None);
            answer = Py_None;
        }
    }
    Py_XDECREF(values);
    Py_XDECREF(unknown);
    return answer;
}

static PyMethodDef methods[] = {
    {"unpack", unpack, METH_VARARGS, "Unpack an LZ4 block; None if it is damaged."},
    {"decode", decode, METH_VARARGS, "The columns of a list of messages; None if it is damaged."},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {{0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
