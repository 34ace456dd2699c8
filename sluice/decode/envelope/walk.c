/* eBay's envelopes (sluice/producer/wire.py shows the .proto): each row and each value becomes a
 * node in arrays, in the order in which they stand in the messages.
 *
 * Stricter than the official parsers, which take the last of two values, cut numbers to the
 * field's size and treat a field of the wrong type as unknown: here all of these are faults.
 * Accepted in any order and any length of numbers up to 64 bits; unknown fields are skipped
 * unless the table refuses them. Strings may hold any bytes, as ClickHouse's do.
 * tests/decode/slow_envelope.py has the same rules in Python, to compare with.
 *
 * The input is not trusted: every length is checked against what is left before it is used.
 * Nothing is allocated or kept. A node stands for a field of its own, whose tag and length take
 * two bytes, so that a text never has more nodes than half of its bytes.
 */

#include <stdint.h>
#include <string.h>

#define FIELD_MAX 536870911
/* Lists in lists; the official parsers stop at 100 messages in messages. */
#define LIST_DEPTH_MAX 90

enum code {
    FINE = 0,
    CUT_OFF = 1,
    CUT_NUMBER = 2,
    LONG_NUMBER = 3,
    NO_FIELD_NUMBER = 4,
    NO_WIRE_TYPE = 5,
    OTHER_WIRE_TYPE = 6,
    UNKNOWN = 7,
    TWICE = 8,
    NO_PAYLOAD = 9,
    TWO_PAYLOADS = 10,
    EMPTY_ROW = 11,
    NO_VALUE = 12,
    TWO_VALUES = 13,
    RANGE = 14,
    DEPTH = 15
};

enum holder { REQUEST = 0, BINDINGS = 1, BLOCK = 2, ROW = 3, VALUE = 4, LIST = 5, TIMESTAMP = 6 };
/* Fields of a request, and of its bindings. */
enum { SHARD = 1, TABLE = 2, BOUND = 3, NATIVE = 4, HASH = 5 };
enum { SQL = 1 };
/* Fields of a value. UNREADABLE: a node whose value is at fault. */
enum kind {
    UNREADABLE = 0,
    NULL_VALUE = 1,
    INT_VALUE = 2,
    UINT_VALUE = 4,
    DOUBLE_VALUE = 6,
    STRING_VALUE = 7,
    BOOL_VALUE = 8,
    TIMESTAMP_VALUE = 9,
    LIST_VALUE = 10
};

#define NONE -1
#define KNOWN_FIELDS 11
/* By holder and field. */
static const int8_t WIRE_TYPES[][KNOWN_FIELDS] = {
    [REQUEST] = {NONE, 2, 2, 2, 2, 0, NONE, NONE, NONE, NONE, NONE},
    [BINDINGS] = {NONE, 2, 2, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    [BLOCK] = {NONE, 2, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    [ROW] = {NONE, 2, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    [VALUE] = {NONE, 0, 0, 0, 0, 0, 1, 2, 0, 2, 2},
    [LIST] = {NONE, 2, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    [TIMESTAMP] = {NONE, 0, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
};

/* What is wrong; `number` and `detail` are what its sentence names (walk.py). */
struct fault {
    int64_t code, holder, number, detail;
};

/* One envelope. Head: its statement, or its Native block. */
struct message {
    struct fault fault;
    int64_t table_begin, table_end, head_begin, head_end, has_block, hash, rows;
};

struct input {
    const uint8_t *text;
    int64_t refuses_unknown;
    struct fault fault;
    /* Of each node. Numbers: bits of a number, where a string begins, how many items a list has.
     * Ends: where a string ends, the node behind a list. Depth 0 is a row. */
    int64_t nodes;
    uint8_t *kinds, *depths;
    uint64_t *numbers;
    int64_t *ends;
};

struct part {
    const uint8_t *at, *end;
    enum holder holder;
};

/* A field, 0 behind the last one, with its number or its bytes. */
struct field {
    int id;
    uint64_t number;
    const uint8_t *begin, *end;
};

static int refuse(struct input *in, int code, int holder, uint64_t number, int detail) {
    in->fault = (struct fault){code, holder, (int64_t)number, detail};
    return code;
}

static int64_t add_node(struct input *in, int kind, uint64_t number, int64_t end, int depth) {
    in->kinds[in->nodes] = (uint8_t)kind;
    in->depths[in->nodes] = (uint8_t)depth;
    in->numbers[in->nodes] = number;
    in->ends[in->nodes] = end;
    return in->nodes++;
}

static int read_number(struct part *part, uint64_t *value) {
    *value = 0;
    for (int shift = 0; part->at != part->end; shift += 7) {
        uint64_t byte = *part->at++;
        if (shift == 63 && byte > 1) return LONG_NUMBER;
        *value |= (byte & 0x7f) << shift;
        if (byte < 0x80) return FINE;
    }
    return CUT_NUMBER;
}

static int read_content(struct part *part, int wire_type, struct field *field) {
    uint64_t size;
    int code = FINE;
    if (wire_type == 0) return read_number(part, &field->number);
    if (wire_type == 1) size = 8;
    else if (wire_type == 5) size = 4;
    else if (wire_type == 2) code = read_number(part, &size);
    else return NO_WIRE_TYPE;
    if (code) return code;
    if (size > (uint64_t)(part->end - part->at)) return CUT_OFF;
    field->begin = part->at;
    part->at += size;
    field->end = part->at;
    return FINE;
}

static int next_field(struct input *in, struct part *part, struct field *field) {
    field->id = 0;
    while (part->at != part->end) {
        uint64_t tag;
        int code = read_number(part, &tag);
        uint64_t id = tag >> 3;
        int wire_type = (int)(tag & 7);
        if (!code && (id == 0 || id > FIELD_MAX)) code = NO_FIELD_NUMBER;
        if (!code) code = read_content(part, wire_type, field);
        if (code) return refuse(in, code, part->holder, id, wire_type);
        int expected = id < KNOWN_FIELDS ? WIRE_TYPES[part->holder][id] : NONE;
        if (expected == wire_type) {
            field->id = (int)id;
            return FINE;
        }
        if (expected != NONE) return refuse(in, OTHER_WIRE_TYPE, part->holder, id, wire_type);
        if (in->refuses_unknown) return refuse(in, UNKNOWN, part->holder, id, wire_type);
    }
    return FINE;
}

/* The next field of a message in which each stands once. */
static int next_single(struct input *in, struct part *part, struct field *field, int *seen) {
    int code = next_field(in, part, field);
    if (code || !field->id) return code;
    if (*seen >> field->id & 1) return refuse(in, TWICE, part->holder, (uint64_t)field->id, 0);
    *seen |= 1 << field->id;
    return FINE;
}

static int read_list(struct input *in, enum holder holder, const struct field *list, int depth);

static int read_kind(struct input *in, const struct field *value, int depth) {
    uint64_t number = value->number;
    int fits = 1;
    switch (value->id) {
    case LIST_VALUE:
        return read_list(in, LIST, value, depth);
    case STRING_VALUE:
        add_node(in, STRING_VALUE, (uint64_t)(value->begin - in->text), value->end - in->text, depth);
        return FINE;
    case TIMESTAMP_VALUE: {
        struct part part = {value->begin, value->end, TIMESTAMP};
        struct field field = {.number = 0};
        int code, seen = 0;
        number = 0;
        /* Fields that are passed over leave numbers, too. */
        while (!(code = next_single(in, &part, &field, &seen)) && field.id) number = field.number;
        if (code) return code;
        break;
    }
    case DOUBLE_VALUE:
        memcpy(&number, value->begin, sizeof number);
        break;
    case NULL_VALUE:
        fits = number == 0;
        break;
    case BOOL_VALUE:
        fits = number <= 1;
        break;
    case INT_VALUE:
        fits = (int64_t)number >= INT32_MIN && (int64_t)number <= INT32_MAX;
        break;
    case UINT_VALUE:
        fits = number <= UINT32_MAX;
        break;
    }
    if (!fits) return refuse(in, RANGE, VALUE, number, value->id);
    add_node(in, value->id, number, 0, depth);
    return FINE;
}

static int read_value(struct input *in, const struct field *value, int depth) {
    struct part part = {value->begin, value->end, VALUE};
    struct field field;
    int code, values = 0;
    while (!(code = next_field(in, &part, &field)) && field.id) {
        if (values++) return refuse(in, TWO_VALUES, VALUE, 0, 0);
        code = read_kind(in, &field, depth);
        if (code) return code;
    }
    if (!code && !values) return refuse(in, NO_VALUE, VALUE, 0, 0);
    return code;
}

/* A list or a row. A value at fault becomes a node of its own: it matters only to a table that has
 * its column. */
static int read_list(struct input *in, enum holder holder, const struct field *list, int depth) {
    struct part part = {list->begin, list->end, holder};
    struct field field;
    int code;
    if (depth > LIST_DEPTH_MAX) return refuse(in, DEPTH, holder, LIST_DEPTH_MAX, 0);
    int64_t node = add_node(in, LIST_VALUE, 0, 0, depth);
    while (!(code = next_field(in, &part, &field)) && field.id) {
        int64_t before = in->nodes;
        code = read_value(in, &field, depth + 1);
        if (code) {
            struct fault found = in->fault;
            int64_t rest = found.code | found.holder << 8 | found.detail << 16;
            in->nodes = before;
            add_node(in, UNREADABLE, (uint64_t)found.number, rest, depth + 1);
        }
        in->numbers[node]++;
    }
    in->ends[node] = in->nodes;
    return code;
}

static int read_bindings(struct input *in, const struct field *payload, struct message *message) {
    struct part part = {payload->begin, payload->end, BINDINGS};
    struct field field;
    int code, seen = 0;
    while (!(code = next_field(in, &part, &field)) && field.id) {
        if (field.id == SQL) {
            if (seen++) return refuse(in, TWICE, BINDINGS, SQL, 0);
            message->head_begin = field.begin - in->text;
            message->head_end = field.end - in->text;
        } else if (field.begin == field.end) {
            /* At two bytes a row they would be the dearest to keep. */
            return refuse(in, EMPTY_ROW, BINDINGS, (uint64_t)message->rows, 0);
        } else {
            code = read_list(in, ROW, &field, 0);
            if (code) return code;
            message->rows++;
        }
    }
    return code;
}

static int read_block(struct input *in, const struct field *payload, struct message *message) {
    struct part part = {payload->begin, payload->end, BLOCK};
    struct field field;
    int code, seen = 0;
    message->has_block = 1;
    while (!(code = next_single(in, &part, &field, &seen)) && field.id) {
        message->head_begin = field.begin - in->text;
        message->head_end = field.end - in->text;
    }
    return code;
}

/* Without arrays for nodes only the request's own fields are read. */
static int read_request(struct input *in, struct part part, struct message *message) {
    struct field field, payload = {0};
    int code, seen = 0;
    while (!(code = next_single(in, &part, &field, &seen)) && field.id) {
        if (field.id == TABLE) {
            message->table_begin = field.begin - in->text;
            message->table_end = field.end - in->text;
        } else if (field.id == HASH) {
            message->hash = (int64_t)field.number;
        } else if (field.id == BOUND || field.id == NATIVE) {
            if (payload.id) return refuse(in, TWO_PAYLOADS, REQUEST, 0, 0);
            payload = field;
        }
    }
    if (code) return code;
    if (!payload.id) return refuse(in, NO_PAYLOAD, REQUEST, 0, 0);
    if (!in->kinds) return FINE;
    if (payload.id == NATIVE) return read_block(in, &payload, message);
    return read_bindings(in, &payload, message);
}

/* `found` and the arrays of nodes are filled; gives how many nodes there are. */
int64_t sluice_walk_envelopes(const uint8_t *text, int64_t messages, const int64_t *begins,
                              const int64_t *ends, int64_t refuses_unknown,
                              struct message *found, uint8_t *kinds, uint8_t *depths,
                              uint64_t *numbers, int64_t *node_ends) {
    struct input in = {text, refuses_unknown, {0}, 0, kinds, depths, numbers, node_ends};
    for (int64_t i = 0; i < messages; i++) {
        struct part whole = {text + begins[i], text + ends[i], REQUEST};
        int64_t before = in.nodes;
        found[i] = (struct message){0};
        if (read_request(&in, whole, &found[i])) {
            found[i].fault = in.fault;
            found[i].rows = 0;
            in.nodes = before;
        }
    }
    return in.nodes;
}
