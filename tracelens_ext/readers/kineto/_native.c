/* Slices of Kineto's JSON to columns: what `slice_of` does, as compiled code without the GIL.

   `parse` takes only what is strict JSON and usual: whatever it does not take, and whatever it is
   not sure that msgspec takes, it refuses (None), and Python decodes that slice. It says nothing of
   what is wrong. Numbers that are no plain decimal numbers are handed back one by one. Codes are
   those of the slice, in order of first sight; `KinetoColumns.add` makes them those of
   the trace.

   Nothing is read beyond the end of the text, and no NUL is expected there. A `Ptr` that a function
   returns is behind what it has read; NULL refuses the slice. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef const uint8_t *Ptr;

enum {
    MOST = 64,           /* arguments that are read; columns of texts; arguments of a plan */
    MOST_PLANS = 16,
    MOST_GROUPS = 8,     /* of a plan */
    LONGEST_WORD = 40,   /* of the schema */
    WORD_SLOTS = 256,    /* a power of two; at most half of them are taken */
    DEEPEST = 64,        /* brackets within an event; a bit of a `uint64_t` each */
    MOST_PROBES = 512,   /* in a table: more means that someone chose the texts for that */
    MOST_DIGITS = 64,    /* of numbers that are passed over, so that no double overflows */
    MOST_FRACTION = 9,   /* of times, as in `schema.py` */
    METADATA = 254,
    NO_PHASE = 255,
};
/* What stands for a missing number, and a duration, in `schema.py`. */
#define MISSING (-INT64_C(9000000000000000))
#define MISSING_NS (MISSING * 1000)
#define NO_DURATION_NS INT64_C(-1000)

/* A part of the text, without the quotes if it is a text; `at` is NULL if there is none. */
typedef struct {
    Ptr at;
    uint32_t length;
    bool escaped;
} Span;

/* ---- Words that are known beforehand ---- */

typedef struct {
    uint8_t at[LONGEST_WORD], length;
    int16_t code; /* -1: the slot is free */
} Word;

typedef struct {
    Word slots[WORD_SLOTS];
} Words;

static uint32_t word_slot(Ptr at, size_t length) {
    if (!length) return 0;
    return at[0] * 5u + at[length - 1] * 3u + at[length / 2] + (uint32_t)length * 29u;
}

/* The slot that holds a word or could. */
static Word *find_word(const Words *words, Ptr at, size_t length) {
    uint32_t slot = word_slot(at, length);
    for (;; slot++) {
        const Word *word = &words->slots[slot % WORD_SLOTS];
        if (word->code < 0 || (word->length == length && !memcmp(word->at, at, length)))
            return (Word *)word;
    }
}

static int code_of(const Words *words, Ptr at, size_t length) {
    return length < LONGEST_WORD ? find_word(words, at, length)->code : -1;
}

/* ---- Arrays that grow, and tables of distinct texts ---- */

typedef struct {
    uint8_t *at;
    size_t used, room;
} Buffer;

static bool grow(Buffer *buffer, size_t size) {
    size_t room = buffer->room ? buffer->room * 2 : 1024;
    while (room < buffer->used + size) room *= 2;
    uint8_t *at = realloc(buffer->at, room);
    if (!at) return false;
    buffer->at = at;
    buffer->room = room;
    return true;
}

static inline bool push(Buffer *buffer, const void *item, size_t size) {
    if (buffer->room - buffer->used < size && !grow(buffer, size)) return false;
    memcpy(buffer->at + buffer->used, item, size);
    buffer->used += size;
    return true;
}

typedef struct {
    uint32_t hash, code_and_1; /* 0: the slot is free */
} Slot;

typedef struct {
    Buffer keys; /* `width` spans a code */
    Slot *slots;
    uint32_t width, mask, count;
} Table;

static uint64_t seed; /* another one in each process: few texts can be chosen to collide */

static inline uint64_t mixed(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

static uint64_t hash_of(uint64_t hash, const Span *span) {
    Ptr at = span->at;
    size_t left = span->length;
    uint64_t word = 0;
    hash = mixed(hash, left);
    if (left >= 8) {
        for (; left > 8; at += 8, left -= 8) {
            memcpy(&word, at, 8);
            hash = mixed(hash, word);
        }
        memcpy(&word, at + left - 8, 8);
    } else {
        for (size_t i = 0; i < left; i++) word = word << 8 | at[i];
    }
    return mixed(hash, word);
}

static bool same(const Span *one, const Span *other, uint32_t width) {
    for (uint32_t i = 0; i < width; i++) {
        if (one[i].length != other[i].length) return false;
        if (one[i].length && memcmp(one[i].at, other[i].at, one[i].length)) return false;
    }
    return true;
}

static bool rehash(Table *table) {
    uint32_t size = table->slots ? (table->mask + 1) * 2 : 256;
    Slot *slots = calloc(size, sizeof(Slot));
    if (!slots) return false;
    for (uint32_t i = 0; table->slots && i <= table->mask; i++) {
        if (!table->slots[i].code_and_1) continue;
        uint32_t k = table->slots[i].hash & (size - 1);
        while (slots[k].code_and_1) k = (k + 1) & (size - 1);
        slots[k] = table->slots[i];
    }
    free(table->slots);
    table->slots = slots;
    table->mask = size - 1;
    return true;
}

/* The code of a key of `width` spans, which is added when it is new; negative on failure. */
static int64_t intern(Table *table, const Span *key) {
    if ((!table->slots || table->count > table->mask / 2) && !rehash(table)) return -1;
    uint64_t hash = seed;
    for (uint32_t i = 0; i < table->width; i++) hash = hash_of(hash, &key[i]);
    uint32_t short_hash = (uint32_t)(hash >> 32), k = short_hash & table->mask;
    const Span *keys = (const Span *)table->keys.at;
    for (int probes = 0; table->slots[k].code_and_1; k = (k + 1) & table->mask) {
        uint32_t code = table->slots[k].code_and_1 - 1;
        if (table->slots[k].hash == short_hash &&
            same(&keys[(size_t)code * table->width], key, table->width))
            return code;
        if (++probes > MOST_PROBES) return -1;
    }
    if (!push(&table->keys, key, table->width * sizeof(Span))) return -1;
    table->slots[k] = (Slot){short_hash, ++table->count};
    return table->count - 1;
}

/* ---- JSON ---- */

static inline Ptr space(Ptr p, Ptr end) {
    while (p < end && (*p == ' ' || *p == '\n' || *p == '\r' || *p == '\t')) p++;
    return p;
}

static inline bool is_next(Ptr p, Ptr end, uint8_t c) { return p < end && *p == c; }

static inline bool is_digit(Ptr p, Ptr end) { return p < end && *p >= '0' && *p <= '9'; }

/* The first character that does not stand for itself in a text. */
static inline Ptr special(Ptr p, Ptr end) {
#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = UINT64_C(0x0101010101010101), tops = ones * 0x80;
    for (; end - p >= 8; p += 8) {
        uint64_t word, found;
        memcpy(&word, p, 8);
        uint64_t quote = word ^ ones * '"', back = word ^ ones * '\\';
        /* The lowest bit that is set is right, those above it may not be. */
        found = (word - ones * 0x20) & ~word;
        found |= ((quote - ones) & ~quote) | ((back - ones) & ~back);
        if (found &= tops) return p + __builtin_ctzll(found) / 8;
    }
#endif
    while (p < end && *p >= 0x20 && *p != '"' && *p != '\\') p++;
    return p;
}

static int hex4(Ptr p, Ptr end) {
    int value = 0;
    if (end - p < 4) return -1;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], lower = c | 0x20;
        if (c >= '0' && c <= '9') value = value * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f') value = value * 16 + (lower - 'a' + 10);
        else return -1;
    }
    return value;
}

/* Behind an escape, at whose backslash `p` is. */
static Ptr escape(Ptr p, Ptr end) {
    if (end - p < 2) return NULL;
    if (p[1] != 'u') return memchr("\"\\/bfnrt", p[1], 8) ? p + 2 : NULL;
    int unit = hex4(p + 2, end);
    if (unit < 0 || (unit >= 0xDC00 && unit < 0xE000)) return NULL;
    p += 6;
    if (unit < 0xD800 || unit >= 0xE000) return p;
    if (end - p < 6 || p[0] != '\\' || p[1] != 'u') return NULL;
    unit = hex4(p + 2, end);
    return unit >= 0xDC00 && unit < 0xE000 ? p + 6 : NULL;
}

/* Behind a text, at whose opening quote `p` is. */
static Ptr text(Ptr p, Ptr end, Span *found) {
    Ptr start = ++p;
    found->escaped = false;
    while ((p = special(p, end)) < end) {
        if (*p == '"') {
            found->at = start;
            found->length = (uint32_t)(p - start);
            return p + 1;
        }
        if (*p != '\\' || !(p = escape(p, end))) return NULL;
        found->escaped = true;
    }
    return NULL;
}

/* Behind a key and its colon. */
static Ptr key(Ptr p, Ptr end, Span *found) {
    p = space(p, end);
    if (!is_next(p, end, '"') || !(p = text(p, end, found)) || found->escaped) return NULL;
    p = space(p, end);
    return is_next(p, end, ':') ? space(p + 1, end) : NULL;
}

static Ptr number(Ptr p, Ptr end) {
    if (is_next(p, end, '-')) p++;
    Ptr start = p;
    if (!is_digit(p, end)) return NULL;
    while (is_digit(p, end)) p++;
    if ((*start == '0' && p - start > 1) || p - start > MOST_DIGITS) return NULL;
    if (is_next(p, end, '.')) {
        if (!is_digit(++p, end)) return NULL;
        while (is_digit(p, end)) p++;
    }
    if (is_next(p, end, 'e') || is_next(p, end, 'E')) {
        p++;
        if (is_next(p, end, '-') || is_next(p, end, '+')) p++;
        start = p;
        while (is_digit(p, end)) p++;
        if (p == start || p - start > 2) return NULL;
    }
    return p;
}

static Ptr literal(Ptr p, Ptr end, const char *expected) {
    size_t length = strlen(expected);
    return (size_t)(end - p) >= length && !memcmp(p, expected, length) ? p + length : NULL;
}

/* Behind a value without brackets. */
static Ptr scalar(Ptr p, Ptr end) {
    Span passed;
    switch (*p) {
    case '"': return text(p, end, &passed);
    case 'n': return literal(p, end, "null");
    case 't': return literal(p, end, "true");
    case 'f': return literal(p, end, "false");
    default: return number(p, end);
    }
}

/* Behind a value of any sort. */
static Ptr value(Ptr p, Ptr end) {
    uint64_t objects = 0; /* of the open brackets those that are braces; the lowest: innermost */
    int depth = 0;
    Span passed;
    for (;;) {
        if ((p = space(p, end)) == end) return NULL;
        if (*p == '{' || *p == '[') {
            bool object = *p == '{';
            if (depth++ == DEEPEST) return NULL;
            objects = objects << 1 | object;
            p = space(p + 1, end);
            if (!is_next(p, end, object ? '}' : ']')) {
                if (object && !(p = key(p, end, &passed))) return NULL;
                continue;
            }
        } else if (!(p = scalar(p, end))) {
            return NULL;
        }
        while (depth) {
            p = space(p, end);
            if (is_next(p, end, ',')) {
                p++;
                if (objects & 1 && !(p = key(p, end, &passed))) return NULL;
                break;
            }
            if (!is_next(p, end, objects & 1 ? '}' : ']')) return NULL;
            p++, depth--, objects >>= 1;
        }
        if (!depth) return p;
    }
}

/* ---- Numbers ---- */

/* Whether a value is a plain integer that fits, and which; null counts as missing. */
static bool integer(const Span *token, int64_t *found) {
    Ptr p = token->at, end = p + token->length;
    uint64_t sum = 0;
    bool negative = *p == '-';
    Ptr start = p += negative;
    while (is_digit(p, end)) sum = sum * 10 + (*p++ - '0');
    if (p < end || p == start || p - start > 19 || sum >= INT64_MAX) {
        *found = MISSING;
        return token->length == 4 && !memcmp(token->at, "null", 4);
    }
    *found = negative ? -(int64_t)sum : (int64_t)sum;
    return true;
}

/* As `integer`, of decimal µs as ns, rounded half up. */
static bool nanoseconds(const Span *token, int64_t *found) {
    Ptr p = token->at, end = p + token->length;
    uint64_t sum = 0;
    bool negative = *p == '-', up = false;
    Ptr start = p += negative;
    while (is_digit(p, end)) sum = sum * 10 + (*p++ - '0');
    bool fits = p > start && p - start <= 16;
    Ptr dot = p += is_next(p, end, '.');
    for (int place = 0; place < 3; place++) sum = sum * 10 + (is_digit(p, end) ? *p++ - '0' : 0);
    if (is_digit(p, end)) {
        bool half = *p == '5', more = *p > '5';
        for (p++; is_digit(p, end); p++) more = more || (half && *p > '0');
        up = more || (half && !negative);
    }
    sum += up;
    if (p < end || !fits || p - dot > MOST_FRACTION || sum >= INT64_MAX) {
        *found = MISSING_NS;
        return token->length == 4 && !memcmp(token->at, "null", 4);
    }
    *found = negative ? -(int64_t)sum : (int64_t)sum;
    return true;
}

/* ---- The schema: what is read of which kinds of events ---- */

typedef struct {
    uint8_t count, first_column;
    uint8_t arguments[MOST]; /* without the first one an event has none of them */
} Group;

typedef struct {
    uint8_t numbers_count, groups_count, numbers[MOST];
    Group groups[MOST_GROUPS];
} Plan;

enum { PH, CAT, NAME, PID, TID, TS, DUR, ID, ARGS, FIELDS };

typedef struct {
    Words fields, arguments, categories, phases;
    Plan plans[MOST_PLANS], *plan_of[256];
    int other;            /* the kind of what is not known */
    int begin;            /* added to the kind of what only begins */
    int id, name, labels; /* arguments: behind the last one the event's own id; those of metadata */
    int columns_count;
} Schema;

/* ---- A slice ---- */

enum { TS_COLUMN = -2, DUR_COLUMN = -1 };

typedef struct {
    int32_t column; /* an argument, or one of those above */
    int32_t row;    /* of the column, not of the events */
    Span token;
} Odd;

typedef struct {
    int32_t track;
    Span name, label_name, labels;
} Special;

typedef struct {
    const Schema *schema;
    Ptr end;
    Table tracks, names, texts;
    Buffer kind_of_track, specials, odd;
    Buffer track, name, kind, ts, dur;                   /* of events on a timeline */
    Buffer number_rows[MOST], numbers[MOST];            /* an argument each */
    Buffer text_rows[MOST], spans[MOST], codes[MOST];   /* a column each */
    uint32_t count, rows;
} Slice;

static void release(Slice *s) {
    Table *tables[] = {&s->tracks, &s->names, &s->texts};
    Buffer *single[] = {&s->kind_of_track, &s->specials, &s->odd, &s->track, &s->name,
                        &s->kind,         &s->ts,       &s->dur};
    for (size_t i = 0; i < 3; i++) free(tables[i]->slots), free(tables[i]->keys.at);
    for (size_t i = 0; i < sizeof single / sizeof *single; i++) free(single[i]->at);
    for (size_t i = 0; i < MOST; i++) {
        free(s->number_rows[i].at), free(s->numbers[i].at);
        free(s->text_rows[i].at), free(s->spans[i].at), free(s->codes[i].at);
    }
}

/* What an event holds; fields and arguments that it lacks have no place in the text. */
typedef struct {
    uint64_t seen; /* arguments: a bit each */
    Span fields[FIELDS], arguments[MOST];
} Event;

static bool is_one(const Span *span, char c) { return span->length == 1 && *span->at == c; }

/* As `kind_of` in `schema.py`; negative when Python has to see. */
static int kind_of(const Schema *schema, const Span *phase, const Span *category) {
    uint8_t folded[LONGEST_WORD];
    int found = schema->other;
    if (phase->escaped) return -1;
    if (!phase->length) return NO_PHASE;
    bool begins = is_one(phase, 'B');
    if (!begins && !is_one(phase, 'X')) {
        found = code_of(&schema->phases, phase->at, phase->length);
        return found < 0 ? schema->other : found;
    }
    if (category->escaped) return -1;
    for (uint32_t i = 0; i < category->length; i++) {
        uint8_t c = category->at[i];
        if (c >= 0x80) return -1; /* which may fold to ASCII */
        if (i < LONGEST_WORD) folded[i] = c >= 'A' && c <= 'Z' ? c | 0x20 : c;
    }
    found = code_of(&schema->categories, folded, category->length);
    if (found < 0) found = schema->other;
    return begins ? found + schema->begin : found;
}

/* Behind the arguments of an event, at whose opening brace `p` is. */
static Ptr read_arguments(Slice *s, Ptr p, Event *event) {
    Span name;
    Ptr end = s->end;
    if (!is_next(p, end, '{')) return NULL;
    p = space(p + 1, end);
    if (is_next(p, end, '}')) return p + 1;
    for (;; p++) {
        if (!(p = key(p, end, &name)) || p == end) return NULL;
        int argument = code_of(&s->schema->arguments, name.at, name.length);
        Ptr start = p;
        if (!(p = value(p, end))) return NULL;
        if (argument >= 0) {
            if (event->seen >> argument & 1) return NULL;
            event->seen |= UINT64_C(1) << argument;
            event->arguments[argument] = (Span){start, (uint32_t)(p - start), false};
        }
        p = space(p, end);
        if (is_next(p, end, '}')) return p + 1;
        if (!is_next(p, end, ',')) return NULL;
    }
}

/* Behind a field of an event, whose value `p` is at. */
static Ptr read_field(Slice *s, Ptr p, int field, Event *event) {
    Ptr start = p, end = s->end;
    Span *found = &event->fields[field];
    if (found->at) return NULL; /* twice */
    if (p == end) return NULL;
    switch (field) {
    case PH:
    case CAT:
    case NAME:
        return *p == '"' ? text(p, end, found) : NULL;
    case PID:
    case TID: { /* with its quotes */
        int64_t found_number;
        bool quoted = *p == '"';
        if (!(p = quoted ? text(p, end, found) : value(p, end))) return NULL;
        bool escaped = quoted && found->escaped;
        *found = (Span){start, (uint32_t)(p - start), escaped};
        return quoted || (*start != 'n' && integer(found, &found_number)) ? p : NULL;
    }
    case ARGS:
        found->at = p;
        return read_arguments(s, p, event);
    default:
        if (!(p = value(p, end))) return NULL;
        *found = (Span){start, (uint32_t)(p - start), false};
        return p;
    }
}

static bool push_time(Slice *s, Buffer *column, int number, const Span *token, int64_t missing) {
    int64_t time = missing;
    if (token->at && !nanoseconds(token, &time)) {
        Odd odd = {number, (int32_t)s->rows, *token};
        if (!push(&s->odd, &odd, sizeof odd)) return false;
    }
    return push(column, &time, sizeof time);
}

static bool push_number(Slice *s, int argument, const Span *token) {
    int64_t found;
    int32_t row = (int32_t)s->rows;
    Buffer *rows = &s->number_rows[argument];
    if (!integer(token, &found)) {
        Odd odd = {argument, (int32_t)(rows->used / sizeof row), *token};
        if (!push(&s->odd, &odd, sizeof odd)) return false;
    } else if (found == MISSING) {
        return true;
    }
    return push(rows, &row, sizeof row) && push(&s->numbers[argument], &found, sizeof found);
}

static bool push_event(Slice *s, const Event *event, int32_t track, uint8_t kind) {
    const Schema *schema = s->schema;
    const Plan *plan = schema->plan_of[kind];
    int64_t name = intern(&s->names, &event->fields[NAME]);
    int32_t name_code = (int32_t)name, row = (int32_t)s->rows;
    if (name < 0 || !push(&s->track, &track, sizeof track) || !push(&s->kind, &kind, sizeof kind) ||
        !push(&s->name, &name_code, sizeof name_code) ||
        !push_time(s, &s->ts, TS_COLUMN, &event->fields[TS], MISSING_NS) ||
        !push_time(s, &s->dur, DUR_COLUMN, &event->fields[DUR], NO_DURATION_NS))
        return false;
    if (plan) {
        for (int i = 0; i < plan->numbers_count; i++) {
            int argument = plan->numbers[i];
            const Span *token = &event->fields[ID];
            if (argument != schema->id) token = &event->arguments[argument];
            bool given = argument == schema->id ? token->at != NULL : event->seen >> argument & 1;
            if (given && !push_number(s, argument, token)) return false;
        }
        for (int i = 0; i < plan->groups_count; i++) {
            const Group *group = &plan->groups[i];
            if (!(event->seen >> group->arguments[0] & 1)) continue;
            for (int k = 0; k < group->count; k++) {
                int column = group->first_column + k, argument = group->arguments[k];
                Span token = {0};
                if (event->seen >> argument & 1) token = event->arguments[argument];
                if (!push(&s->text_rows[column], &row, sizeof row) ||
                    !push(&s->spans[column], &token, sizeof token))
                    return false;
            }
        }
    }
    s->rows++;
    return true;
}

static bool take_event(Slice *s, const Event *event) {
    const Span *fields = event->fields;
    const Span spans[4] = {fields[PH], fields[CAT], fields[PID], fields[TID]};
    uint32_t known = s->tracks.count;
    int64_t track = intern(&s->tracks, spans);
    if (track < 0) return false;
    if (track == known) {
        int kind = kind_of(s->schema, &spans[0], &spans[1]);
        uint8_t small = (uint8_t)kind;
        if (kind < 0 || !push(&s->kind_of_track, &small, 1)) return false;
    }
    s->count++;
    uint8_t kind = s->kind_of_track.at[track];
    if (kind < METADATA) return push_event(s, event, (int32_t)track, kind);
    Special special = {(int32_t)track, fields[NAME], {0}, {0}};
    int name = s->schema->name, labels = s->schema->labels;
    if (event->seen >> name & 1) special.label_name = event->arguments[name];
    if (event->seen >> labels & 1) special.labels = event->arguments[labels];
    return push(&s->specials, &special, sizeof special);
}

/* Behind an event, at whose opening brace `p` is. */
static Ptr read_event(Slice *s, Ptr p, Event *event) {
    Span name;
    Ptr end = s->end;
    event->seen = 0;
    memset(event->fields, 0, sizeof event->fields);
    p = space(p + 1, end);
    if (is_next(p, end, '}')) return p + 1;
    for (;; p++) {
        if (!(p = key(p, end, &name))) return NULL;
        int field = code_of(&s->schema->fields, name.at, name.length);
        p = field < 0 ? value(p, end) : read_field(s, p, field, event);
        if (!p) return NULL;
        p = space(p, end);
        if (is_next(p, end, '}')) return p + 1;
        if (!is_next(p, end, ',')) return NULL;
    }
}

/* Codes of the texts, a column after the other, as the Python reader gives them. */
static bool intern_texts(Slice *s) {
    const Span none = {0}, null = {(Ptr) "null", 4, false};
    for (int column = 0; column < s->schema->columns_count; column++) {
        Buffer *rows = &s->text_rows[column];
        const Span *spans = (const Span *)s->spans[column].at;
        size_t count = rows->used / sizeof(int32_t), kept = 0;
        int32_t *row_of = (int32_t *)rows->at;
        for (size_t i = 0; i < count; i++) {
            int64_t code = intern(&s->texts, &spans[i]);
            int32_t small = (int32_t)code;
            if (code < 0) return false;
            if (!spans[i].length || same(&spans[i], &null, 1)) continue;
            row_of[kept++] = row_of[i];
            if (!push(&s->codes[column], &small, sizeof small)) return false;
        }
        rows->used = kept * sizeof(int32_t);
        if (count && (intern(&s->texts, &none) < 0 || intern(&s->texts, &null) < 0)) return false;
    }
    return true;
}

static bool read_slice(Slice *s, Ptr p) {
    Event event;
    Ptr end = s->end;
    p = space(p, end);
    if (!is_next(p, end, '[')) return false;
    p = space(p + 1, end);
    if (!is_next(p, end, ']')) {
        for (;; p = space(p + 1, end)) {
            if (!is_next(p, end, '{') || !(p = read_event(s, p, &event)) || !take_event(s, &event))
                return false;
            p = space(p, end);
            if (is_next(p, end, ']')) break;
            if (!is_next(p, end, ',')) return false;
        }
    }
    return space(p + 1, end) == end && intern_texts(s);
}

/* ---- What Python sees ---- */

static PyObject *bytes_of(const Buffer *buffer) {
    return PyBytes_FromStringAndSize((const char *)buffer->at, (Py_ssize_t)buffer->used);
}

static PyObject *token_of(const Span *span) {
    return PyBytes_FromStringAndSize((const char *)span->at, span->length);
}

/* The text of a string; its escapes are Python's business. Nothing is made after an error. */
static PyObject *string_of(const Span *span, PyObject *decode) {
    if (PyErr_Occurred()) return NULL;
    if (!span->length) return PyUnicode_FromString("");
    if (!span->escaped) return PyUnicode_DecodeUTF8((const char *)span->at, span->length, "strict");
    return PyObject_CallFunction(decode, "y#", span->at - 1, (Py_ssize_t)span->length + 2);
}

/* A process or thread: a text, which stands with its quotes, or an integer. */
static PyObject *label_of(const Span *span, PyObject *decode) {
    int64_t found;
    if (!span->at) return PyUnicode_FromString("?");
    if (*span->at == '"') {
        Span inner = {span->at + 1, span->length - 2, span->escaped};
        return string_of(&inner, decode);
    }
    integer(span, &found);
    return PyLong_FromLongLong(found);
}

/* A list of `count` items, each what `item(slice, index, decode)` makes. */
static PyObject *list_of(const Slice *s, size_t count, PyObject *decode,
                         PyObject *(*item)(const Slice *, size_t, PyObject *)) {
    PyObject *list = PyErr_Occurred() ? NULL : PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list && i < count; i++) {
        PyObject *made = item(s, i, decode);
        if (!made || PyList_SetItem(list, (Py_ssize_t)i, made) < 0) Py_CLEAR(list);
    }
    return list;
}

static PyObject *track_item(const Slice *s, size_t i, PyObject *decode) {
    const Span *spans = (const Span *)s->tracks.keys.at + i * 4;
    return Py_BuildValue("(NNNN)", string_of(&spans[0], decode), string_of(&spans[1], decode),
                         label_of(&spans[2], decode), label_of(&spans[3], decode));
}

static PyObject *name_item(const Slice *s, size_t i, PyObject *decode) {
    return string_of((const Span *)s->names.keys.at + i, decode);
}

static PyObject *text_item(const Slice *s, size_t i, PyObject *decode) {
    (void)decode;
    return token_of((const Span *)s->texts.keys.at + i);
}

static PyObject *special_item(const Slice *s, size_t i, PyObject *decode) {
    const Special *special = (const Special *)s->specials.at + i;
    return Py_BuildValue("(iiNNN)", s->kind_of_track.at[special->track], special->track,
                         string_of(&special->name, decode), token_of(&special->label_name),
                         token_of(&special->labels));
}

static PyObject *odd_item(const Slice *s, size_t i, PyObject *decode) {
    const Odd *odd = (const Odd *)s->odd.at + i;
    (void)decode;
    return Py_BuildValue("(iiN)", odd->column, odd->row, token_of(&odd->token));
}

static PyObject *number_item(const Slice *s, size_t i, PyObject *decode) {
    (void)decode;
    return Py_BuildValue("(NN)", bytes_of(&s->number_rows[i]), bytes_of(&s->numbers[i]));
}

static PyObject *column_item(const Slice *s, size_t i, PyObject *decode) {
    (void)decode;
    return Py_BuildValue("(NN)", bytes_of(&s->text_rows[i]), bytes_of(&s->codes[i]));
}

static PyObject *answer_of(const Slice *s, PyObject *decode) {
    return Py_BuildValue(
        "(INNNNNNNNNNNN)", s->count,
        list_of(s, s->specials.used / sizeof(Special), decode, special_item),
        list_of(s, s->tracks.count, decode, track_item),
        list_of(s, s->names.count, decode, name_item),
        list_of(s, s->texts.count, decode, text_item), bytes_of(&s->track), bytes_of(&s->name),
        bytes_of(&s->kind), bytes_of(&s->ts), bytes_of(&s->dur),
        list_of(s, (size_t)s->schema->id + 1, decode, number_item),
        list_of(s, (size_t)s->schema->columns_count, decode, column_item),
        list_of(s, s->odd.used / sizeof(Odd), decode, odd_item));
}

static const char SCHEMA[] = "tracelens_ext.schema";

/* parse(schema, text, decode): the columns of a slice; None if it is refused. */
static PyObject *parse(PyObject *module, PyObject *args) {
    PyObject *capsule, *decode, *answer = NULL;
    Py_buffer given;
    bool taken = false;
    (void)module;
    if (!PyArg_ParseTuple(args, "Oy*O", &capsule, &given, &decode)) return NULL;
    Slice *s = calloc(1, sizeof *s);
    const Schema *schema = PyCapsule_GetPointer(capsule, SCHEMA);
    if (s && schema && given.len > 0 && given.len < INT32_MAX) {
        s->schema = schema;
        s->end = (Ptr)given.buf + given.len;
        s->tracks.width = 4;
        s->names.width = s->texts.width = 1;
        Py_BEGIN_ALLOW_THREADS
        taken = read_slice(s, given.buf);
        Py_END_ALLOW_THREADS
        if (taken) answer = answer_of(s, decode);
    }
    if (s) release(s);
    free(s);
    PyBuffer_Release(&given);
    if (answer || PyErr_Occurred()) return answer;
    return Py_NewRef(Py_None);
}

static bool add_word(Words *words, const char *at, Py_ssize_t length, int code) {
    if (!at || length >= LONGEST_WORD) return false;
    Word *word = find_word(words, (Ptr)at, (size_t)length);
    memcpy(word->at, at, (size_t)length);
    word->length = (uint8_t)length;
    word->code = (int16_t)code;
    return true;
}

/* Words of a list, each with the code that a byte says, else its place. */
static bool add_words(Words *words, PyObject *list, const char *codes, Py_ssize_t count) {
    if (PyList_Size(list) > WORD_SLOTS / 2 || (codes && PyList_Size(list) != count)) return false;
    for (int i = 0; i < WORD_SLOTS; i++) words->slots[i].code = -1;
    for (Py_ssize_t i = 0; i < PyList_Size(list); i++) {
        Py_ssize_t length;
        const char *at = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, i), &length);
        if (!add_word(words, at, length, codes ? (uint8_t)codes[i] : (int)i)) return false;
    }
    return true;
}

static bool copy(uint8_t *to, uint8_t *count, const char *from, Py_ssize_t length, int below) {
    if (length > MOST) return false;
    for (Py_ssize_t i = 0; i < length; i++) {
        if ((uint8_t)from[i] >= below) return false;
        to[i] = (uint8_t)from[i];
    }
    *count = (uint8_t)length;
    return true;
}

static bool add_plan(Schema *schema, Plan *plan, PyObject *item) {
    const char *kinds, *numbers, *fields;
    Py_ssize_t kinds_count, numbers_count, fields_count;
    PyObject *groups;
    if (!PyArg_ParseTuple(item, "y#y#O!", &kinds, &kinds_count, &numbers, &numbers_count,
                          &PyList_Type, &groups) ||
        !copy(plan->numbers, &plan->numbers_count, numbers, numbers_count, schema->id + 1) ||
        PyList_Size(groups) > MOST_GROUPS)
        return false;
    for (Py_ssize_t i = 0; i < kinds_count; i++) schema->plan_of[(uint8_t)kinds[i]] = plan;
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        Group *group = &plan->groups[plan->groups_count++];
        group->first_column = (uint8_t)schema->columns_count;
        if (!PyArg_Parse(PyList_GetItem(groups, i), "y#", &fields, &fields_count) ||
            !fields_count || schema->columns_count + fields_count > MOST ||
            !copy(group->arguments, &group->count, fields, fields_count, schema->id))
            return false;
        schema->columns_count += (int)fields_count;
    }
    return true;
}

static void free_schema(PyObject *capsule) { free(PyCapsule_GetPointer(capsule, SCHEMA)); }

/* schema(fields, arguments, (categories, codes), (phases, codes), plans, other, begin) */
static PyObject *make_schema(PyObject *module, PyObject *args) {
    PyObject *fields, *arguments, *categories, *phases, *plans;
    const char *of_categories, *of_phases;
    Py_ssize_t categories_count, phases_count;
    Schema *schema = calloc(1, sizeof *schema);
    (void)module;
    if (!schema) return PyErr_NoMemory();
    bool good =
        PyArg_ParseTuple(args, "O!O!(O!y#)(O!y#)O!ii", &PyList_Type, &fields, &PyList_Type,
                         &arguments, &PyList_Type, &categories, &of_categories, &categories_count,
                         &PyList_Type, &phases, &of_phases, &phases_count, &PyList_Type, &plans,
                         &schema->other, &schema->begin) &&
        schema->other >= 0 && schema->begin >= 0 && schema->other + schema->begin < METADATA &&
        PyList_Size(fields) == FIELDS && PyList_Size(arguments) < MOST &&
        PyList_Size(plans) <= MOST_PLANS && add_words(&schema->fields, fields, NULL, 0) &&
        add_words(&schema->arguments, arguments, NULL, 0) &&
        add_words(&schema->categories, categories, of_categories, categories_count) &&
        add_words(&schema->phases, phases, of_phases, phases_count);
    if (good) {
        schema->id = (int)PyList_Size(arguments);
        schema->name = code_of(&schema->arguments, (Ptr) "name", 4);
        schema->labels = code_of(&schema->arguments, (Ptr) "labels", 6);
        good = schema->name >= 0 && schema->labels >= 0;
    }
    for (Py_ssize_t i = 0; good && i < PyList_Size(plans); i++)
        good = add_plan(schema, &schema->plans[i], PyList_GetItem(plans, i));
    PyObject *capsule = good ? PyCapsule_New(schema, SCHEMA, free_schema) : NULL;
    if (!capsule) free(schema);
    if (!capsule && !PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "beyond the limits");
    return capsule;
}

static PyMethodDef methods[] = {
    {"schema", make_schema, METH_VARARGS, "What `parse` looks for."},
    {"parse", parse, METH_VARARGS, "The columns of a slice; None if it is refused."},
    {NULL, NULL, 0, NULL},
};

/* Python's own hashes of texts differ between processes. */
static int begin(PyObject *module) {
    PyObject *name = PyModule_GetNameObject(module);
    seed = name ? (uint64_t)PyObject_Hash(name) : 0;
    Py_XDECREF(name);
    return name ? 0 : -1;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, begin}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_native", .m_methods = methods, .m_slots = slots};

PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&definition); }
