/* bench_roof.inc.h: the moves, once per vector width: ISA, TARGET, LINE, LOAD, OPAQUE, STORE, STREAM and
 * WIDTH are the including file's, and are undefined here. */
#define PASTE2(a, b) a##_##b
#define PASTE(a, b)  PASTE2(a, b)

/* n bytes at p + at of one array: read, and (mode 1) written or (mode 2) streamed back. */
TARGET INLINE void PASTE(touch, ISA)(char *p, uint64_t at, unsigned n, int mode, int prefetch)
{
    for (unsigned i = 0; i < n; i += WIDTH) {
        if (prefetch && i % 64 == 0)
            __builtin_prefetch(p + at + i + AHEAD);
        LINE x = LOAD(p + at + i);
        OPAQUE(x);
        if (mode == 1)
            STORE(p + at + i, x);
        else if (mode == 2)
            STREAM(p + at + i, x);
    }
}

TARGET INLINE void PASTE(put, ISA)(char *p, uint64_t at, unsigned n, int stream)
{
    LINE x = {0};

    for (unsigned i = 0; i < n; i += WIDTH) {
        OPAQUE(x);
        if (stream)
            STREAM(p + at + i, x);
        else
            STORE(p + at + i, x);
    }
}

/* 32 elements a round, as the kernels do; all but begin and end is known when this is compiled. */
TARGET INLINE void PASTE(rounds, ISA)(unsigned gb, unsigned mb, unsigned vb, unsigned nv,
                                      unsigned param, enum hl_roof_way way,
                                      const struct hl_roof_arrays *arrays, uint64_t begin,
                                      uint64_t end)
{
    const struct hl_roof_arrays a = *arrays;
    int prefetch = way == HL_ROOF_PREFETCH || way == HL_ROOF_PREFETCH_STREAM;
    int stream = way != HL_ROOF_PLAIN && way != HL_ROOF_PREFETCH;
    int back = way == HL_ROOF_STREAM_ALL ? 2 : 1;

    for (uint64_t i = begin; i < end; i += 32) {
        PASTE(touch, ISA)((char *)a.grad, i * gb, 32 * gb, 0, prefetch);
        PASTE(touch, ISA)(a.master, i * mb, 32 * mb, back, prefetch);
        if (nv > 0)
            PASTE(touch, ISA)(a.moment[0], i * vb, 32 * vb, back, prefetch);
        if (nv > 1)
            PASTE(touch, ISA)(a.moment[1], i * vb, 32 * vb, back, prefetch);
        if (param == 1)
            PASTE(put, ISA)(a.param, i * 2, 64, stream);
        if (param == 2)
            PASTE(touch, ISA)(a.param, i * 2, 64, back, prefetch);
    }
}

#define ROUNDS(gb, mb, vb, nv, param, way)                                                         \
    case way:                                                                                      \
        PASTE(rounds, ISA)(gb, mb, vb, nv, param, way, a, begin, end);                             \
        break
#define SHAPE(gb, mb, vb, nv, pm)                                                                  \
    if (s->grad_bytes == gb && s->master_bytes == mb && s->moment_bytes == vb &&                   \
        s->nmoments == nv && s->param == pm) {                                                     \
        switch (way) {                                                                             \
            ROUNDS(gb, mb, vb, nv, pm, HL_ROOF_PLAIN);                                             \
            ROUNDS(gb, mb, vb, nv, pm, HL_ROOF_PREFETCH);                                          \
            ROUNDS(gb, mb, vb, nv, pm, HL_ROOF_STREAM);                                            \
            ROUNDS(gb, mb, vb, nv, pm, HL_ROOF_PREFETCH_STREAM);                                   \
            ROUNDS(gb, mb, vb, nv, pm, HL_ROOF_STREAM_ALL);                                        \
        default:                                                                                   \
            break;                                                                                 \
        }                                                                                          \
        return;                                                                                    \
    }
#define MOMENTS(gb, mb, pm)                                                                        \
    SHAPE(gb, mb, 4, 0, pm)                                                                        \
    SHAPE(gb, mb, 4, 1, pm)                                                                        \
    SHAPE(gb, mb, 2, 1, pm)                                                                        \
    SHAPE(gb, mb, 4, 2, pm)                                                                        \
    SHAPE(gb, mb, 2, 2, pm)

TARGET static void PASTE(move, ISA)(const struct hl_roof_shape *s, enum hl_roof_way way,
                                    const struct hl_roof_arrays *a, uint64_t begin, uint64_t end){
    MOMENTS(2, 4, 0) MOMENTS(2, 4, 1) MOMENTS(2, 2, 2) MOMENTS(4, 4, 0) MOMENTS(4, 4, 1)
        MOMENTS(4, 2, 2)}

TARGET static void PASTE(read, ISA)(const char *src, uint64_t bytes, int prefetch)
{
    for (uint64_t i = 0; i + 256 <= bytes; i += 256)
        PASTE(touch, ISA)((char *)src, i, 256, 0, prefetch);
}

#undef MOMENTS
#undef SHAPE
#undef ROUNDS
#undef PASTE
#undef PASTE2
#undef ISA
#undef TARGET
#undef LINE
#undef LOAD
#undef OPAQUE
#undef STORE
#undef STREAM
#undef WIDTH
