/* Whether each message is one JSON object, or one array, that no value is missing in:
 * `is_one_row` of boundaries.py, which tests compare with, message by message.
 *
 * The input is not trusted. Nothing is allocated or kept.
 */

#include <stdint.h>
#include <string.h>

#define DEPTH_MAX 64

enum verdict { SOUND = 0, FAULT = 1, TOO_DEEP = 2 };

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

static enum verdict verdict_of(const uint8_t *at, const uint8_t *end, uint8_t opening)
{
    uint64_t kinds = 0; /* of open brackets, the innermost last: 1 is a brace */
    int depth = 0;
    int inside = 0;
    uint8_t before = 0; /* the last symbol that is no space; of a string its quote */
    while (at < end && is_space(*at))
        at++;
    if (at == end || *at != opening)
        return FAULT;
    for (; at < end; at++) {
        uint8_t symbol = *at;
        if (inside) {
            if (symbol == '"')
                inside = 0;
            else if (symbol == '\n')
                return FAULT;
            else if (symbol == '\\' && ++at < end && *at == '\n')
                return FAULT;
            continue;
        }
        if (is_space(symbol))
            continue;
        if (is_missing(before, symbol, depth && !(kinds & 1)))
            return FAULT;
        if (opening == '[' && is_sign(symbol) && is_sign(at[-1]))
            return FAULT;
        /* A row has a value at least. */
        if (symbol == ']' && before == '[' && opening == '[' && depth == 1)
            return FAULT;
        before = symbol;
        switch (symbol) {
        case '"':
            inside = 1;
            break;
        case '\\':
            return FAULT;
        case '{':
        case '[':
            if (depth == DEPTH_MAX)
                return TOO_DEEP;
            kinds = kinds << 1 | (symbol == '{');
            depth++;
            break;
        case '}':
        case ']':
            if ((kinds & 1) != (symbol == '}'))
                return FAULT;
            kinds >>= 1;
            if (--depth)
                break;
            for (at++; at < end; at++)
                if (!is_space(*at))
                    return FAULT;
            return SOUND;
        }
    }
    return FAULT;
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
        verdicts[i] = is_sound ? SOUND : verdict_of(at, at + size, (uint8_t)opening);
        unsound += verdicts[i] != SOUND;
    }
    return unsound;
}
