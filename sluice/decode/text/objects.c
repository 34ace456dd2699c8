/* Rows of CSV, TSV, JSON arrays and plain lines as JSON objects, each on a line of its own: so there is one reader of
 * values for all of them, and one proof of where a row ends (brackets.c).
 *
 * Values become texts in quotes, which JSON reads like the bare ones of lines; a column's type says
 * (objects.py) where something else is meant: words, brackets, objects. What cannot be put into JSON
 * stays a text, which the column does not take.
 *
 * The input is not trusted. Nothing is allocated or kept.
 */

#include <stdint.h>
#include <string.h>
#include <strings.h>

#define DEPTH_MAX 64

enum dialect { CSV = 0, TSV = 1, ARRAYS = 2, PLAIN = 3 };
/* Of a message; none of its rows are written. */
enum fault { FINE = 0, EMPTY = 1, MARKED = 2, OPEN = 3, ESCAPED_END = 4, RETURNS = 5 };
/* Of a row, in place of how many values it has. */
#define GARBAGE -1

enum kind { SKIPPED = 0, TEXT = 1, NUMBER = 2, WORD = 3, NEST = 4, OBJECT = 5 };
/* Added to a kind: the value is an element of a tuple; and it may be null. Above: of the first element of
 * a column, how many others there are, which an absent column has not. */
enum { KIND = 15, ELEMENT = 16, NULLABLE = 32, OTHERS_SHIFT = 8 };

/* One value of a row: what stands before it in the object, and how many brackets it closes. */
struct value {
    int64_t kind, key_begin, key_end, closes;
};

struct layout {
    int64_t first, count;
};

struct input {
    const struct value *values;
    const uint8_t *keys;
    int64_t dialect;
    uint8_t delimiter;
    const uint8_t *null;
    int64_t null_size;
    uint8_t *scratch;
};

/* A value as it stands there, without its quotes. */
struct cell {
    const uint8_t *at, *end;
    int is_quoted, has_escapes;
};

static int is_space(uint8_t symbol)
{
    return symbol == ' ' || symbol == '\t' || symbol == '\r' || symbol == '\n';
}

static int is_digit(uint8_t symbol)
{
    return (uint8_t)(symbol - '0') < 10;
}

static uint8_t *put(uint8_t *to, const uint8_t *from, int64_t size)
{
    memcpy(to, from, size);
    return to + size;
}

static uint8_t *put_symbol(uint8_t *to, uint8_t symbol)
{
    if (symbol == '"' || symbol == '\\' || symbol == '\n')
        *to++ = '\\';
    *to++ = symbol == '\n' ? 'n' : symbol;
    return to;
}

static uint8_t *put_text(uint8_t *to, const uint8_t *at, const uint8_t *end)
{
    *to++ = '"';
    while (at < end)
        to = put_symbol(to, *at++);
    *to++ = '"';
    return to;
}

static int hex(uint8_t symbol)
{
    if (is_digit(symbol))
        return symbol - '0';
    symbol |= 0x20;
    return symbol >= 'a' && symbol <= 'f' ? symbol - 'a' + 10 : -1;
}

/* What stands behind a backslash, as the engine reads it; gives how many symbols there are of it. */
static int unescape(const uint8_t **at, const uint8_t *end, uint8_t found[2])
{
    static const char names[] = "abefnrtv0", means[] = "\a\b\x1b\f\n\r\t\v";
    uint8_t symbol = *(*at)++;
    if (symbol == 'N')
        return 0;
    if (symbol == 'x' && end - *at >= 2 && hex((*at)[0]) >= 0 && hex((*at)[1]) >= 0) {
        found[0] = (uint8_t)(hex((*at)[0]) << 4 | hex((*at)[1]));
        *at += 2;
        return 1;
    }
    const char *name = symbol ? strchr(names, symbol) : NULL;
    found[0] = name ? (uint8_t)means[name - names] : symbol;
    if (name || symbol < 0x20 || symbol == 0x7f || strchr("\\`\"'/=", symbol))
        return 1;
    found[0] = '\\';
    found[1] = symbol;
    return 2;
}

/* A text in single quotes, behind the first one; NULL: it does not end. */
static uint8_t *put_quoted(uint8_t *to, const uint8_t **from, const uint8_t *end)
{
    const uint8_t *at = *from;
    *to++ = '"';
    while (at < end) {
        uint8_t symbols[2] = {*at++};
        int count = 1;
        if (symbols[0] == '\'') {
            if (at == end || *at != '\'') {
                *from = at;
                *to++ = '"';
                return to;
            }
            at++;
        } else if (symbols[0] == '\\') {
            if (at == end)
                return NULL;
            count = unescape(&at, end, symbols);
        }
        for (int i = 0; i < count; i++)
            to = put_symbol(to, symbols[i]);
    }
    return NULL;
}

static int is_word_symbol(uint8_t symbol)
{
    return is_digit(symbol) || (uint8_t)((symbol | 0x20) - 'a') < 26 || symbol == '+' || symbol == '-' ||
           symbol == '.' || symbol == '_';
}

static uint8_t *put_word(uint8_t *to, const uint8_t *at, const uint8_t *end, int is_key)
{
    if (end - at == 4 && !strncasecmp((const char *)at, "NULL", 4))
        return put(to, (const uint8_t *)"null", 4);
    if (end - at == 3 && !is_key && !strncasecmp((const char *)at, "nan", 3))
        return put(to, (const uint8_t *)"NaN", 3); /* the engine takes n for null */
    return is_key ? put_text(to, at, end) : put(to, at, end - at);
}

/* An array, a map or a tuple; NULL: it is none, or a value is missing in it. */
static uint8_t *put_nest(uint8_t *to, const uint8_t *at, const uint8_t *end)
{
    uint8_t open[DEPTH_MAX], before = 0;
    int depth = 0;
    while (at < end) {
        uint8_t symbol = *at;
        int is_opened = before == '[' || before == '(' || before == '{';
        int may_begin = !before || is_opened || before == ',' || before == ':';
        if (is_space(symbol)) {
            at++;
        } else if (symbol == ',' || symbol == ':') {
            if (may_begin || !depth || (symbol == ':' && open[depth - 1] != '{'))
                return NULL;
            *to++ = before = symbol;
            at++;
        } else if (symbol == ']' || symbol == ')' || symbol == '}') {
            uint8_t opening = symbol == ')' ? '(' : symbol - 2;
            if (!depth || open[--depth] != opening || (may_begin && !is_opened))
                return NULL;
            *to++ = symbol == '}' ? '}' : ']';
            before = 'v';
            at++;
        } else if (!may_begin || (!before && symbol != '[' && symbol != '(' && symbol != '{')) {
            return NULL;
        } else if (symbol == '[' || symbol == '(' || symbol == '{') {
            if (depth == DEPTH_MAX)
                return NULL;
            open[depth++] = before = symbol;
            *to++ = symbol == '{' ? '{' : '[';
            at++;
        } else if (symbol == '\'') {
            at++;
            if (!(to = put_quoted(to, &at, end)))
                return NULL;
            before = 'v';
        } else {
            const uint8_t *word = at;
            while (at < end && is_word_symbol(*at))
                at++;
            if (at == word)
                return NULL;
            to = put_word(to, word, at, open[depth - 1] == '{' && before != ':');
            before = 'v';
        }
    }
    return before && !depth ? to : NULL;
}

/* Behind a JSON value; NULL: it does not end. */
static const uint8_t *json_end(const uint8_t *at, const uint8_t *end)
{
    int64_t depth = 0;
    for (; at < end; at++) {
        if (*at == '"') {
            for (at++; at < end && *at != '"'; at++)
                at += *at == '\\';
            if (at >= end)
                return NULL;
        } else if (*at == '{' || *at == '[') {
            depth++;
        } else if ((*at == '}' || *at == ']') && --depth <= 0) {
            return depth ? NULL : at + 1;
        } else if (!depth && *at == ',') {
            return at;
        }
    }
    return NULL;
}

/* A JSON text without its line breaks. */
static uint8_t *put_json(uint8_t *to, const uint8_t *at, const uint8_t *end)
{
    for (; at < end; at++)
        *to++ = *at == '\n' ? ' ' : *at;
    return to;
}

/* A number as JSON writes it, true or false. */
static int is_json_word(const uint8_t *at, const uint8_t *end)
{
    if ((end - at == 4 && !memcmp(at, "true", 4)) || (end - at == 5 && !memcmp(at, "false", 5)))
        return 1;
    at += at < end && *at == '-';
    const uint8_t *first = at;
    while (at < end && is_digit(*at))
        at++;
    if (at == first)
        return 0;
    if (end - at > 1 && *at == '.' && is_digit(at[1]))
        for (at++; at < end && is_digit(*at); at++)
            ;
    if (end - at > 1 && (*at | 0x20) == 'e') {
        at += 1 + (at[1] == '-' || at[1] == '+');
        for (first = at; at < end && is_digit(*at); at++)
            ;
        if (at == first)
            return 0;
    }
    return at == end;
}

static uint8_t *put_value(uint8_t *to, int64_t kind, const uint8_t *at, const uint8_t *end)
{
    uint8_t *found = NULL;
    if (kind == OBJECT && at < end && *at == '{' && json_end(at, end) == end)
        return put_json(to, at, end);
    if (kind >= WORD && at < end && (*at == '[' || *at == '(' || *at == '{'))
        found = put_nest(to, at, end);
    if (!found && kind == WORD && is_json_word(at, end))
        found = put(to, at, end - at);
    return found ? found : put_text(to, at, end);
}

/* A value of lines; `to` is behind what stands before it. */
static uint8_t *put_cell(const struct input *in, uint8_t *to, int64_t kind, struct cell cell)
{
    const uint8_t *at = cell.at, *end = cell.end;
    int64_t size = end - at;
    if (in->dialect != PLAIN && !cell.is_quoted && size == in->null_size && !memcmp(at, in->null, size))
        return put(to, (const uint8_t *)"null", 4);
    if (in->dialect == CSV && !cell.is_quoted && !size && kind & NULLABLE)
        return put(to, (const uint8_t *)"null", 4);
    kind &= KIND;
    if (in->dialect == TSV && cell.has_escapes && kind != NEST) {
        uint8_t *plain = in->scratch;
        while (at < end) {
            uint8_t symbols[2] = {*at++};
            int count = symbols[0] == '\\' && at < end ? unescape(&at, end, symbols) : 1;
            plain = put(plain, symbols, count);
        }
        at = in->scratch;
        end = plain;
    }
    if (in->dialect == CSV && (kind == NUMBER || kind == WORD)) {
        while (end - at > 1 && *at == ' ')
            at++;
        while (end - at > 1 && end[-1] == ' ')
            end--;
        if (end - at > 2 && *at == '\'' && end[-1] == '\'') {
            at++;
            end--;
        }
    }
    return put_value(to, kind, at, end);
}

/* The value of CSV that begins here; gives where it ends. Doubled quotes are taken out in the scratch. */
static const uint8_t *csv_cell(const struct input *in, const uint8_t *at, const uint8_t *end,
                               struct cell *cell, enum fault *fault, int *is_garbage)
{
    uint8_t *plain = in->scratch;
    if (at < end && *at == '"') {
        const uint8_t *begin = ++at, *close;
        while ((close = memchr(at, '"', end - at)) && close + 1 < end && close[1] == '"') {
            plain = put(plain, at, close + 1 - at);
            at = close + 2;
        }
        if (!close) {
            *fault = OPEN;
            return end;
        }
        *cell = (struct cell){begin, close, 1, 0};
        if (plain != in->scratch) {
            plain = put(plain, at, close - at);
            *cell = (struct cell){in->scratch, plain, 1, 0};
        }
        at = close + 1;
        const uint8_t *behind = at;
        while (at < end && *at != in->delimiter && *at != '\n')
            at++;
        if (at - behind > 1 && (at == end || *at == '\n') && at[-1] == '\r' && at[-2] == '\r')
            *fault = RETURNS;
        *is_garbage |= at != behind && (at - behind > 1 || *behind != '\r' || (at < end && *at != '\n'));
        return at;
    }
    *cell = (struct cell){at, at, 0, 0};
    while (at < end && *at != in->delimiter && *at != '\n')
        at++;
    cell->end = at;
    return at;
}

/* The same of TSV, in which a backslash belongs to what follows. */
static const uint8_t *tsv_cell(const uint8_t *at, const uint8_t *end, struct cell *cell,
                               enum fault *fault)
{
    *cell = (struct cell){at, at, 0, 0};
    while (at < end && *at != '\t' && *at != '\n') {
        if (*at == '\\') {
            cell->has_escapes = 1;
            at++;
        }
        at++;
    }
    if (at > end) {
        *fault = ESCAPED_END;
        at = end;
    }
    cell->end = at;
    return at;
}

/* The same of a plain line: all of it is one value. */
static const uint8_t *plain_cell(const uint8_t *at, const uint8_t *end, struct cell *cell)
{
    const uint8_t *close = memchr(at, '\n', end - at);
    *cell = (struct cell){at, close ? close : end, 0, 0};
    return cell->end;
}

/* A row that begins here, as an object; gives where it ends. */
static const uint8_t *put_line(const struct input *in, const struct layout *layout, const uint8_t *at,
                               const uint8_t *end, uint8_t **out, enum fault *fault, int64_t *code)
{
    const struct value *values = in->values + layout->first;
    uint8_t *to = *out;
    int64_t number = 0;
    int is_garbage = 0, is_last;
    *to++ = '{';
    do {
        struct cell cell;
        if (in->dialect == PLAIN)
            at = plain_cell(at, end, &cell);
        else
            at = in->dialect == CSV ? csv_cell(in, at, end, &cell, fault, &is_garbage)
                                    : tsv_cell(at, end, &cell, fault);
        if (*fault)
            return at;
        is_last = at == end || *at == '\n';
        if (is_last && !cell.is_quoted && cell.end > cell.at && cell.end[-1] == '\r' &&
            --cell.end > cell.at && cell.end[-1] == '\r') {
            *fault = RETURNS;
            return at;
        }
        if (in->dialect == CSV && !cell.is_quoted && memchr(cell.at, '\r', cell.end - cell.at))
            is_garbage = 1;
        if (number < layout->count) {
            const struct value *value = values + number;
            int is_absent = in->dialect == CSV && !cell.is_quoted && cell.at == cell.end;
            if (is_absent && !(value->kind & ELEMENT)) {
                number += value->kind >> OTHERS_SHIFT;
            } else if (value->kind) {
                if (to[-1] != '{')
                    *to++ = ',';
                to = put(to, in->keys + value->key_begin, value->key_end - value->key_begin);
                to = put_cell(in, to, value->kind, cell);
                for (int64_t i = 0; i < value->closes; i++)
                    *to++ = ']';
            }
        }
        number++;
        at += !is_last;
    } while (!is_last);
    *code = number == layout->count ? 0 : number;
    if (is_garbage)
        *code = GARBAGE;
    if (*code)
        to = *out + 1;
    *to++ = '}';
    *to++ = '\n';
    *out = to;
    return at;
}

/* The row that a JSON array is, whose structure is proven, as an object. */
static void put_array(const struct input *in, const struct layout *layout, const uint8_t *at,
                      const uint8_t *end, uint8_t **out, int64_t *code)
{
    uint8_t *to = *out;
    int64_t number = 0;
    *to++ = '{';
    at = (const uint8_t *)memchr(at, '[', end - at) + 1;
    while (end[-1] != ']')
        end--;
    for (end--; at <= end; number++) {
        const uint8_t *first = at, *behind = json_end(at, end);
        /* Behind a value in brackets stand blanks. */
        while (behind && behind < end && *behind != ',')
            behind++;
        at = behind ? behind : end;
        if (number < layout->count && in->values[layout->first + number].kind) {
            const struct value *value = in->values + layout->first + number;
            if (to[-1] != '{')
                *to++ = ',';
            to = put(to, in->keys + value->key_begin, value->key_end - value->key_begin);
            to = put_json(to, first, at);
        }
        at++;
    }
    *code = number == layout->count ? 0 : number;
    if (*code)
        to = *out + 1;
    *to++ = '}';
    *to++ = '\n';
    *out = to;
}

static enum fault put_message(const struct input *in, const struct layout *layout, const uint8_t *at,
                              const uint8_t *end, uint8_t **out, int64_t *rows, int64_t *codes,
                              int64_t *row_ends, const uint8_t *out_begin)
{
    enum fault fault = FINE;
    int has_any = 0;
    if (end - at >= 3 && !memcmp(at, "\xef\xbb\xbf", 3))
        return MARKED;
    while (at < end) {
        has_any |= *at != '\n' && !(*at == '\r' && (at + 1 == end || at[1] == '\n'));
        at = put_line(in, layout, at, end, out, &fault, codes + *rows);
        if (fault)
            return fault;
        row_ends[(*rows)++] = *out - 1 - out_begin;
        at++;
    }
    return has_any ? FINE : EMPTY;
}

/* The rows of messages as objects, a newline behind each. Gives how many there are.
 *
 * chosen: the layout of each message. row_ends: of each object, exclusive; owners: its message. codes: 0,
 * or how many values the row has, or GARBAGE: then the object is empty. faults: of messages. bytes: of
 * all that is written. */
int64_t sluice_objects(const uint8_t *text, int64_t messages, const int64_t *begins,
                       const int64_t *ends, const int64_t *chosen, const struct layout *layouts,
                       const struct value *values, const uint8_t *keys, int64_t dialect,
                       int64_t delimiter, const uint8_t *null, int64_t null_size, uint8_t *scratch,
                       uint8_t *out, int64_t *row_ends, int64_t *owners, int64_t *codes,
                       uint8_t *faults, int64_t *bytes)
{
    struct input in = {values, keys, dialect, (uint8_t)delimiter, null, null_size, scratch};
    uint8_t *to = out;
    int64_t rows = 0;
    for (int64_t i = 0; i < messages; i++) {
        const struct layout *layout = layouts + chosen[i];
        const uint8_t *at = text + begins[i], *end = text + ends[i];
        uint8_t *before = to;
        int64_t rows_before = rows;
        faults[i] = FINE;
        if (dialect == ARRAYS) {
            put_array(&in, layout, at, end, &to, codes + rows);
            row_ends[rows++] = to - 1 - out;
        } else {
            faults[i] = put_message(&in, layout, at, end, &to, &rows, codes, row_ends, out);
        }
        if (faults[i]) {
            to = before;
            rows = rows_before;
        }
        for (int64_t row = rows_before; row < rows; row++)
            owners[row] = i;
    }
    *bytes = to - out;
    return rows;
}
