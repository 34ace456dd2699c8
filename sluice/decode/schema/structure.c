/* Whether one message is what its schema says: Protobuf's wire format and Avro's bodies; and
 * messages behind each other as the engine reads them.
 *
 * The engine takes some messages that are not: a length where a number should be, the third
 * branch of a union of two. Here every byte of a message is accounted for before the engine sees
 * it. tests/decode/slow_walk.py has the same rules in Python, to compare with.
 *
 * The input is not trusted: every length is checked against what is left before it is used.
 * Nothing is allocated or kept. Tables (structure.py) are trusted.
 */

#include <stdint.h>
#include <string.h>

#define DEPTH_MAX 64
#define EMPTY_ITEMS_MAX 4096 /* more than a message has bytes */
#define FIELD_NUMBER_MAX 536870911

enum code {
    FINE = 0,
    TRUNCATED = 1,
    TRAILING = 2,
    VARINT = 3,
    RANGE = 4,
    BRANCH = 5,
    SYMBOL = 6,
    WIRE = 7,
    TAG = 8,
    ONEOF = 9,
    DEPTH = 10,
    UNKNOWN = 11,
    COUNT = 12,
    NULL_REFUSED = 13,
    REFUSED = 14,
    TWICE = 15
};

struct input {
    const uint8_t *at;
    const uint8_t *end;
    int64_t empty_items_left; /* Avro: items without bytes, of the whole message */
    int64_t where; /* Avro: the node at fault, Protobuf: the message's own field */
    const int32_t *nodes;
    const int32_t *children;
    const int32_t *types;
    const int32_t *fields;
    const int32_t *enums;
    int32_t refuses_unknown;
    int comes_again; /* Protobuf: the message at hand stood there before */
    struct unknown *unknown;
};

/* Fields that no type has: 2^32 times the message's own field that they stand in, or are, and their
 * number. Each once, as far as there is room. */
struct unknown {
    int64_t *places;
    int64_t room;
    int64_t count;
};

static int read_varint(struct input *in, uint64_t *value) {
    uint64_t result = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (in->at == in->end) return TRUNCATED;
        uint64_t byte = *in->at++;
        if (shift == 63 && byte != 1) return VARINT; /* the engine wants it so too */
        result |= (byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = result;
            return FINE;
        }
    }
    return VARINT;
}

static int skip(struct input *in, uint64_t bytes) {
    if (bytes > (uint64_t)(in->end - in->at)) return TRUNCATED;
    in->at += bytes;
    return FINE;
}

/* ---- Avro ---- */

enum avro_kind {
    A_NULL = 0,
    A_BOOLEAN = 1,
    A_INT = 2, /* a: lowest, b: highest */
    A_LONG = 3,
    A_FIXED = 4, /* a: bytes */
    A_BYTES = 5, /* a: fewest, b: most bytes; -1: any */
    A_ENUM = 6,  /* a: symbols */
    A_ARRAY = 7, /* a: node of the items */
    A_MAP = 8,
    A_UNION = 9, /* a: first child, b: children */
    A_RECORD = 10,
    A_REFUSED_NULL = 11
};

static int avro_value(struct input *in, int32_t node, int depth);

static int64_t unzigzag(uint64_t value) { return (int64_t)(value >> 1) ^ -(int64_t)(value & 1); }

static int read_long(struct input *in, int64_t *value) {
    uint64_t raw = 0;
    int code = read_varint(in, &raw);
    *value = unzigzag(raw);
    return code;
}

static int avro_blocks(struct input *in, int32_t item, int is_map, int32_t node, int depth) {
    for (;;) {
        int64_t count, size;
        int code = read_long(in, &count);
        if (code || count == 0) return code;
        const uint8_t *stop = 0;
        if (count < 0) {
            if (count == INT64_MIN) {
                in->where = node;
                return COUNT;
            }
            count = -count;
            code = read_long(in, &size);
            if (code) return code;
            if (size < 0 || size > in->end - in->at) return TRUNCATED;
            stop = in->at + size;
        }
        if (count > in->end - in->at + in->empty_items_left) {
            in->where = node;
            return COUNT;
        }
        const uint8_t *begin = in->at;
        for (int64_t left = count; left > 0; left--) {
            if (is_map) {
                int64_t length;
                code = read_long(in, &length);
                if (code) return code;
                if (length < 0) return TRUNCATED;
                code = skip(in, (uint64_t)length);
                if (code) return code;
            }
            code = avro_value(in, item, depth + 1);
            if (code) return code;
        }
        if (count > in->at - begin) in->empty_items_left -= count - (in->at - begin);
        if ((stop && stop != in->at) || in->empty_items_left < 0) {
            in->where = node;
            return COUNT;
        }
    }
}

static int avro_value(struct input *in, int32_t node, int depth) {
    const int32_t *n = in->nodes + 3 * node;
    int64_t number;
    int code;
    if (depth > DEPTH_MAX) return DEPTH;
    switch (n[0]) {
    case A_NULL:
        return FINE;
    case A_REFUSED_NULL:
        in->where = node;
        return NULL_REFUSED;
    case A_BOOLEAN:
        in->where = node;
        if (in->at == in->end) return TRUNCATED;
        return *in->at++ > 1 ? RANGE : FINE;
    case A_INT:
        in->where = node;
        code = read_long(in, &number);
        if (code) return code;
        return number < n[1] || number > n[2] ? RANGE : FINE;
    case A_LONG:
        in->where = node;
        return read_long(in, &number);
    case A_FIXED:
        in->where = node;
        return skip(in, (uint64_t)n[1]);
    case A_BYTES:
        in->where = node;
        code = read_long(in, &number);
        if (code) return code;
        if (number < 0) return TRUNCATED;
        if (number < n[1] || (n[2] >= 0 && number > n[2])) return RANGE;
        return skip(in, (uint64_t)number);
    case A_ENUM:
        in->where = node;
        code = read_long(in, &number);
        if (code) return code;
        return number < 0 || number >= n[1] ? SYMBOL : FINE;
    case A_ARRAY:
    case A_MAP:
        in->where = node;
        return avro_blocks(in, n[1], n[0] == A_MAP, node, depth);
    case A_UNION:
        in->where = node;
        code = read_long(in, &number);
        if (code) return code;
        if (number < 0 || number >= n[2]) return BRANCH;
        return avro_value(in, in->children[n[1] + number], depth + 1);
    default:
        for (int32_t child = 0; child < n[2]; child++) {
            code = avro_value(in, in->children[n[1] + child], depth + 1);
            if (code) return code;
        }
        return FINE;
    }
}

/* Node 0 is the message. `results`: the code, and 256 times the node at fault. */
void sluice_check_avro(const uint8_t *text, int64_t messages, const int64_t *begins,
                       const int64_t *ends, const int32_t *nodes, const int32_t *children,
                       int64_t *results) {
    for (int64_t i = 0; i < messages; i++) {
        struct input in = {.at = text + begins[i], .end = text + ends[i],
                           .empty_items_left = EMPTY_ITEMS_MAX + ends[i] - begins[i],
                           .nodes = nodes, .children = children};
        int code = avro_value(&in, 0, 0);
        if (!code && in.at != in.end) {
            in.where = 0;
            code = TRAILING;
        }
        results[i] = code ? code + 256 * in.where : 0;
    }
}

/* Rows behind each other, from `begin` to `end`: where each of `rows` ends. Gives 0, or the code
 * and 256 times the node at fault. */
int64_t sluice_split_avro(const uint8_t *text, int64_t begin, int64_t end, int64_t rows,
                          const int32_t *nodes, const int32_t *children, int64_t *row_ends) {
    struct input in = {.at = text + begin, .end = text + end,
                       .empty_items_left = EMPTY_ITEMS_MAX + end - begin, .nodes = nodes,
                       .children = children};
    for (int64_t row = 0; row < rows; row++) {
        int code = avro_value(&in, 0, 0);
        if (code) return code + 256 * in.where;
        row_ends[row] = in.at - text;
    }
    return in.at == in.end ? FINE : TRAILING;
}

/* ---- Protobuf ---- */

enum protobuf_kind {
    P_VARINT = 0, /* of 64 bits */
    P_UNSIGNED = 1,
    P_SIGNED = 2,
    P_BOOL = 3,
    P_ENUM = 4, /* reference: first and count of its sorted numbers */
    P_FIXED64 = 5,
    P_FIXED32 = 6,
    P_BYTES = 7,
    P_MESSAGE = 8, /* reference: its type */
    P_REFUSED = 9 /* a message that no column can hold, and one should */
};

#define FIELD_WORDS 6 /* number, kind, is repeated, oneof (0: none), reference, count */
#define ONEOFS_MAX 64
#define TRACKED_MAX 4096 /* fields of a type */

static const int WIRE_TYPES[] = {0, 0, 0, 0, 0, 1, 5, 2, 2, 2};

static const int32_t *find_field(const struct input *in, int32_t type, uint64_t number) {
    const int32_t *first = in->fields + FIELD_WORDS * in->types[2 * type];
    int32_t low = 0, high = in->types[2 * type + 1];
    if (number >= 1 && number <= (uint64_t)high && first[FIELD_WORDS * (number - 1)] == (int32_t)number)
        return first + FIELD_WORDS * (number - 1);
    while (low < high) {
        int32_t middle = (low + high) / 2;
        int32_t found = first[FIELD_WORDS * middle];
        if (found == (int32_t)number) return first + FIELD_WORDS * middle;
        if (found < (int32_t)number) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static int is_among(const int32_t *numbers, int32_t count, int64_t number) {
    int32_t low = 0, high = count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (numbers[middle] == number) return 1;
        if (numbers[middle] < number) low = middle + 1;
        else high = middle;
    }
    return 0;
}

static int protobuf_scalar(struct input *in, const int32_t *field) {
    uint64_t value;
    int code;
    switch (field[1]) {
    case P_FIXED64:
        return skip(in, 8);
    case P_FIXED32:
        return skip(in, 4);
    }
    code = read_varint(in, &value);
    if (code) return code;
    int64_t number = (int64_t)value;
    switch (field[1]) {
    case P_UNSIGNED:
        return value > UINT32_MAX ? RANGE : FINE;
    case P_SIGNED:
        return number < INT32_MIN || number > INT32_MAX ? RANGE : FINE;
    case P_BOOL:
        return value > 1 ? RANGE : FINE;
    case P_ENUM:
        return is_among(in->enums + field[4], field[5], number) ? FINE : SYMBOL;
    default:
        return FINE;
    }
}

static int protobuf_message(struct input *in, int32_t type, int depth);

static int protobuf_length(struct input *in, const int32_t *field, int depth) {
    uint64_t length;
    int code = read_varint(in, &length);
    if (code) return code;
    if (length > (uint64_t)(in->end - in->at)) return TRUNCATED;
    const uint8_t *outer = in->end;
    if (field == 0 || field[1] == P_BYTES) {
        in->at += length;
        return FINE;
    }
    in->end = in->at + length;
    if (field[1] == P_MESSAGE) {
        code = protobuf_message(in, field[4], depth + 1);
    } else {
        while (!code && in->at != in->end) code = protobuf_scalar(in, field);
    }
    in->end = outer;
    return code;
}

static int protobuf_unknown(struct input *in, int wire, int depth) {
    uint64_t value;
    switch (wire) {
    case 0:
        return read_varint(in, &value);
    case 1:
        return skip(in, 8);
    case 2:
        return protobuf_length(in, 0, depth);
    case 5:
        return skip(in, 4);
    default:
        return TAG;
    }
}

static void note_unknown(const struct input *in, uint64_t number) {
    struct unknown *unknown = in->unknown;
    int64_t place = in->where << 32 | (int64_t)number;
    for (int64_t i = 0; i < unknown->count; i++) {
        if (unknown->places[i] == place) return;
    }
    if (unknown->count < unknown->room) unknown->places[unknown->count++] = place;
}

/* Whether a field, or the message that it is in, stood there before. Parsers take the last number or
 * text, and merge messages; so does the engine, but it makes an empty text of one that comes late. */
static int comes_again(const struct input *in, const int32_t *first, const int32_t *field,
                       uint64_t *seen) {
    int64_t place = (field - first) / FIELD_WORDS;
    if (field[2]) return 0; /* of a repeated field each is one of its own */
    if (place >= TRACKED_MAX) return in->comes_again;
    uint64_t bit = (uint64_t)1 << place % 64, before = seen[place / 64] & bit;
    seen[place / 64] |= bit;
    return before != 0 || in->comes_again;
}

static int protobuf_message(struct input *in, int32_t type, int depth) {
    int32_t chosen[ONEOFS_MAX] = {0};
    uint64_t seen[TRACKED_MAX / 64];
    const int32_t *first = in->fields + FIELD_WORDS * in->types[2 * type];
    int32_t fields = in->types[2 * type + 1];
    if (depth > DEPTH_MAX) return DEPTH;
    memset(seen, 0, fields < TRACKED_MAX ? (size_t)(fields + 63) / 64 * 8 : sizeof seen);
    while (in->at != in->end) {
        uint64_t tag;
        int code = read_varint(in, &tag);
        if (code) return code;
        uint64_t number = tag >> 3;
        int wire = (int)(tag & 7);
        if (depth == 0) in->where = number > FIELD_NUMBER_MAX ? 0 : (int64_t)number;
        if (number == 0 || number > FIELD_NUMBER_MAX) return TAG;
        const int32_t *field = find_field(in, type, number);
        if (field == 0) {
            if (in->refuses_unknown) return UNKNOWN;
            code = protobuf_unknown(in, wire, depth);
            if (!code) note_unknown(in, number);
        } else if (field[1] == P_REFUSED) {
            return REFUSED;
        } else if (wire == 2 && (field[1] >= P_BYTES || field[2])) {
            int again = comes_again(in, first, field, seen), outer = in->comes_again;
            if (again && field[1] == P_BYTES) return TWICE;
            in->comes_again = again;
            code = protobuf_length(in, field, depth);
            in->comes_again = outer;
        } else if (wire == WIRE_TYPES[field[1]]) {
            code = protobuf_scalar(in, field);
        } else {
            return WIRE;
        }
        if (code) return code;
        if (field != 0 && field[3]) {
            int32_t *last = chosen + field[3] % ONEOFS_MAX;
            if (*last != 0 && *last != field[0]) return ONEOF;
            *last = field[0];
        }
    }
    return FINE;
}

/* Type 0 is the message. `results`: the code, and 256 times the number of the
 * message's own field that is, or holds, what is at fault. `places` has room for some `unknown`
 * fields; gives how many there are. */
int64_t sluice_check_protobuf(const uint8_t *text, int64_t messages, const int64_t *begins,
                              const int64_t *ends, const int32_t *types, const int32_t *fields,
                              const int32_t *enums, int32_t refuses_unknown, int64_t *results,
                              int64_t *places, int64_t room) {
    struct unknown unknown = {.places = places, .room = room};
    for (int64_t i = 0; i < messages; i++) {
        struct input in = {.at = text + begins[i], .end = text + ends[i], .types = types,
                           .fields = fields, .enums = enums, .refuses_unknown = refuses_unknown,
                           .unknown = &unknown};
        int64_t before = unknown.count;
        int code = protobuf_message(&in, 0, 0);
        results[i] = code ? code + 256 * in.where : 0;
        if (code) unknown.count = before; /* What a broken message names may be no field. */
    }
    return unknown.count;
}

/* ---- Writing messages behind each other ---- */

/* Each behind its length; `out` has room for 10 bytes more than each. Gives the bytes written. */
int64_t sluice_write_lengths(const uint8_t *text, int64_t messages, const int64_t *begins,
                             const int64_t *ends, uint8_t *out) {
    uint8_t *to = out;
    for (int64_t i = 0; i < messages; i++) {
        uint64_t length = (uint64_t)(ends[i] - begins[i]), rest = length;
        for (; rest >= 0x80; rest >>= 7) *to++ = (uint8_t)(rest | 0x80);
        *to++ = (uint8_t)rest;
        memcpy(to, text + begins[i], length);
        to += length;
    }
    return to - out;
}

#define PLACE_BYTES 4

static uint8_t *put(uint8_t *to, const uint8_t *from, int64_t size) {
    memcpy(to, from, (size_t)size);
    return to + size;
}

/* Each between two marks: what is the same in all, then the bytes of its place. Behind the first mark
 * stand `owner_size` bytes that say whose it is. */
int64_t sluice_write_marks(const uint8_t *text, int64_t rows, const int64_t *begins,
                           const int64_t *ends, const uint8_t *known, int64_t known_size,
                           const uint8_t *places, const uint8_t *owners, int64_t owner_size,
                           uint8_t *out) {
    uint8_t *to = out;
    for (int64_t i = 0; i < rows; i++) {
        to = put(put(to, known, known_size), places + PLACE_BYTES * i, PLACE_BYTES);
        to = put(to, owners + owner_size * i, owner_size);
        to = put(to, text + begins[i], ends[i] - begins[i]);
        to = put(put(to, known, known_size), places + PLACE_BYTES * i, PLACE_BYTES);
    }
    return to - out;
}
