/* Whether each message is one JSON object, or one array, that no value is missing in: the rule is in
 * brackets.py. Tests compare with the same in Python, message by message.
 *
 * The input is not trusted. Nothing is allocated or kept.
 */

#include <stdint.h>
#include <string.h>

/* The engine stops at 1,000. */
#define DEPTH_MAX 1024

static int is_space(uint8_t symbol)
{
    return symbol == ' ' || symbol == '\t' || symbol == '\r' || symbol == '\n';
}

/* No bracket, backslash or newline, and quotes in pairs: between the brackets of a flat message. The
 * range has the brackets of both kinds, the backslash and, needlessly, the bar.
 *
 * No colon has a comma or a space behind it, or the bracket at the end; if it may be `spaced`, one
 * space and no comma. */
static inline __attribute__((always_inline)) int is_plain(const uint8_t *text, int64_t size,
                                                          int spaced)
{
    uint8_t strange = 0, quotes = 0;
    int64_t end = size;
    while (end && text[end - 1] <= ' ')
        end--;
    if (end && text[end - 1] == ':')
        return 0;
    for (int64_t i = 0; i < size - spaced; i++) {
        uint8_t symbol = text[i], next = text[i + 1], blank = next <= ' ';
        strange |= (uint8_t)((symbol | 0x20) - 0x7b) <= 2;
        strange |= symbol == '\n';
        if (spaced)
            blank &= (text[i + 2] == ',') | (text[i + 2] <= ' ');
        strange |= (symbol == ':') & ((next == ',') | blank);
        quotes ^= symbol == '"';
    }
    if (spaced && size) {
        uint8_t symbol = text[size - 1];
        strange |= (uint8_t)((symbol | 0x20) - 0x7b) <= 2 || symbol == '\n';
        quotes ^= symbol == '"';
    }
    return !(strange | quotes);
}

static int is_sign(uint8_t symbol)
{
    return symbol == '-' || symbol == '+';
}

/* Of an array: no number has two signs, which is one near the end of a file; nothing is missing before, behind or between its commas, as far as can be told from
 * neighbours. */
static int is_full(const uint8_t *text, int64_t size)
{
    uint8_t found = 0;
    for (int64_t i = 0; i < size - 1; i++) {
        uint8_t symbol = text[i], next = text[i + 1];
        found |= ((symbol == ',') | (symbol == '[')) & ((next == ',') | (next == ']'));
        found |= ((symbol == '-') | (symbol == '+')) & ((next == '-') | (next == '+'));
        found |= (symbol <= ' ') & ((next == ',') | (next == ']') | (next <= ' '));
    }
    return !found;
}

/* Whether a value should stand between two symbols, of which the engine would make a 0. */
static int is_missing(uint8_t before, uint8_t symbol, int in_array)
{
    if (symbol == ',' || symbol == '}' || symbol == ']')
        return before == ':' || (in_array && before == ',') || (before == '[' && symbol == ',');
    return 0;
}

/* Behind the object or array that begins here; NULL if it does not end. If it is to be whole, no value is
 * missing in it, and no number has two signs. */
static const uint8_t *row_end(const uint8_t *at, const uint8_t *end, uint8_t opening, int is_whole)
{
    uint8_t open[DEPTH_MAX];
    uint8_t before = 0; /* the last symbol that is no space; of a string its quote */
    int depth = 0, inside = 0;
    if (at == end || *at != opening)
        return NULL;
    for (; at < end; at++) {
        uint8_t symbol = *at;
        if (inside) {
            if (symbol == '"')
                inside = 0;
            else if (symbol == '\n')
                return NULL;
            else if (symbol == '\\' && ++at < end && *at == '\n')
                return NULL;
            continue;
        }
        if (is_space(symbol))
            continue;
        if (is_whole && is_missing(before, symbol, depth && open[depth - 1] == '['))
            return NULL;
        if (is_whole && opening == '[' && is_sign(symbol) && is_sign(at[-1]))
            return NULL;
        /* A row has a value at least. */
        if (is_whole && symbol == ']' && before == '[' && opening == '[' && depth == 1)
            return NULL;
        before = symbol;
        if (symbol == '"') {
            inside = 1;
        } else if (symbol == '\\') {
            return NULL;
        } else if (symbol == '{' || symbol == '[') {
            if (depth == DEPTH_MAX)
                return NULL;
            open[depth++] = symbol;
        } else if (symbol == '}' || symbol == ']') {
            if (open[--depth] + 2 != symbol)
                return NULL;
            if (!depth)
                return at + 1;
        }
    }
    return NULL;
}

static const uint8_t *behind_space(const uint8_t *at, const uint8_t *end)
{
    while (at < end && is_space(*at))
        at++;
    return at;
}

static int is_fault(const uint8_t *at, const uint8_t *end, uint8_t opening)
{
    const uint8_t *behind = row_end(behind_space(at, end), end, opening, 1);
    return !behind || behind_space(behind, end) != end;
}

/* Where the rows of a message begin and end: objects, or arrays, with at most one comma between two; or
 * one array of objects. How many there are; -1: something else stands there. */
static int64_t split(const uint8_t *text, const uint8_t *at, const uint8_t *end, uint8_t opening,
                     int64_t *row_begins, int64_t *row_ends)
{
    int64_t rows = 0;
    int is_array, commas = 0;
    at = behind_space(at, end);
    is_array = opening == '{' && at < end && *at == '[';
    for (at = behind_space(at + is_array, end); at < end; at = behind_space(at, end)) {
        if (is_array && *at == ']' && !commas)
            return behind_space(at + 1, end) == end ? rows : -1;
        if (*at == ',') {
            if (!rows || commas++)
                return -1;
            at++;
            continue;
        }
        const uint8_t *behind = row_end(at, end, opening, 0);
        if (!behind || (is_array && rows && !commas))
            return -1;
        row_begins[rows] = at - text;
        row_ends[rows++] = behind - text;
        commas = 0;
        at = behind;
    }
    return is_array || commas || !rows ? -1 : rows;
}

/* Where each of so many messages ends that are joined by newlines; 0 if there are not as many
 * newlines as that, since some message holds one. */
int64_t sluice_line_ends(const uint8_t *text, int64_t size, int64_t messages, int64_t *ends)
{
    int64_t found = 0;
    const uint8_t *at = text, *end = text + size;
    while (at < end && (at = memchr(at, '\n', end - at)) != NULL) {
        if (found == messages - 1)
            return 0;
        ends[found++] = at++ - text;
    }
    ends[found] = size;
    return found == messages - 1;
}

/* Writes a verdict for each message; how many are not sound is given back. */
int64_t sluice_check_brackets(const uint8_t *text, int64_t messages, const int64_t *begins,
                              const int64_t *ends, int64_t opening, uint8_t *verdicts)
{
    uint8_t closing = (uint8_t)(opening + 2); /* two apart in ASCII */
    int64_t unsound = 0;
    int spaced = 0;
    for (int64_t i = 0; i < messages; i++) {
        const uint8_t *at = text + begins[i];
        int64_t size = ends[i] - begins[i];
        int is_sound = size >= 2 && at[0] == opening && at[size - 1] == closing;
        if (is_sound && (spaced ? is_plain(at + 1, size - 2, 1) : is_plain(at + 1, size - 2, 0)))
            is_sound = opening == '{' || is_full(at, size);
        else if (is_sound) {
            /* As a rule, the others are written like this one. */
            spaced = !spaced;
            is_sound = (spaced ? is_plain(at + 1, size - 2, 1) : is_plain(at + 1, size - 2, 0)) &&
                       (opening == '{' || is_full(at, size));
        }
        verdicts[i] = !is_sound && is_fault(at, at + size, (uint8_t)opening);
        unsound += verdicts[i];
    }
    return unsound;
}

/* The rows of messages, by `split`. Gives how many there are. owners: the message of each; faults: 1 for
 * messages that have something else in them. */
int64_t sluice_split_rows(const uint8_t *text, int64_t messages, const int64_t *begins,
                          const int64_t *ends, int64_t opening, int64_t *row_begins,
                          int64_t *row_ends, int64_t *owners, uint8_t *faults)
{
    int64_t rows = 0;
    for (int64_t i = 0; i < messages; i++) {
        int64_t found = split(text, text + begins[i], text + ends[i], (uint8_t)opening,
                              row_begins + rows, row_ends + rows);
        faults[i] = found < 0;
        for (; found > 0; found--)
            owners[rows++] = i;
    }
    return rows;
}

/* Whether so many digits follow each other somewhere. Looked at from behind, few bytes are enough. */
int64_t sluice_has_digits(const uint8_t *text, int64_t size, int64_t length)
{
    for (int64_t first = 0; first + length <= size;) {
        int64_t at = first + length - 1;
        while (at >= first && (uint8_t)(text[at] - '0') < 10)
            at--;
        if (at < first)
            return 1;
        first = at + 1;
    }
    return 0;
}
