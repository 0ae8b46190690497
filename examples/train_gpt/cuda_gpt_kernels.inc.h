/*
 * cuda_gpt_kernels.inc.h: every kernel, written once. The including file defines, for nvcc or for the host:
 *
 *   DEVICE                what stands before a function that kernels call
 *   KERNEL(name)          begins a kernel: a function of (const struct gk_args *a, uint64_t i)
 *   gk_exp gk_log gk_sqrt gk_tanh
 *   gk_of_fp16            FP16 to gk_real
 *   gk_bits gk_of_bits    float to and from its bits; not with GPT_DOUBLE
 *
 * The layers are those of layers.c.
 */

#define GK_NORM_EPS   ((gk_real)1e-5)
#define GK_GELU_SCALE ((gk_real)0.79788456080286535588)
#define GK_GELU_CUBIC ((gk_real)0.044715)
#define GK_LEAST      ((gk_real)-3e38)

#ifdef GPT_DOUBLE
DEVICE gk_real widen(gk_half h)
{
    return h;
}

DEVICE gk_half narrow(gk_real f)
{
    return f;
}
#else
DEVICE gk_real widen(gk_half h)
{
    return gk_of_bits((uint32_t)h << 16);
}

/* To BF16, half to even. */
DEVICE gk_half narrow(gk_real f)
{
    uint32_t bits = gk_bits(f);

    return (gk_half)(f != f ? 0x7fc0u : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
#endif

/* Where the token of row r stands: the last of a sequence is only a target. */
DEVICE uint64_t token_at(const struct gk_args *a, uint64_t r)
{
    return r / a->seq * (a->seq + 1) + r % a->seq;
}

KERNEL(narrow)
{
    a->y16[i] = narrow(a->x[i]);
}

KERNEL(narrow_fp16)
{
    a->y16[i] = narrow(gk_of_fp16(((const uint16_t *)a->raw)[i]));
}

/* ---- embedding ---- */

KERNEL(embed)
{
    uint64_t r = i / a->cols, c = i % a->cols;

    a->y[i] = widen(a->wte[a->tokens[token_at(a, r)] * a->cols + c]) +
              widen(a->wpe[r % a->seq * a->cols + c]);
}

/* grad (tokens there are, cols): a thread an element, which looks for its token. */
KERNEL(embed_token_grad)
{
    uint64_t token = i / a->cols, c = i % a->cols;
    gk_real sum = 0;

    for (uint64_t r = 0; r < a->rows; r++)
        if (a->tokens[token_at(a, r)] == token)
            sum += a->dy[r * a->cols + c];
    a->grad[i] += sum;
}

/* grad (seq, cols) */
KERNEL(embed_position_grad)
{
    gk_real sum = 0;

    for (uint64_t at = i; at < a->rows * a->cols; at += a->seq * a->cols)
        sum += a->dy[at];
    a->grad[i] += sum;
}

/* ---- sums over rows and columns ---- */

/* sums, sums2 of the lanes; lanes2 NULL: sums alone. */
KERNEL(sum_rows)
{
    gk_real sum = 0, sum2 = 0;

    for (uint32_t l = 0; l < GK_LANES; l++)
        sum += a->lanes[i * GK_LANES + l];
    a->sums[i] = sum;
    if (!a->lanes2)
        return;
    for (uint32_t l = 0; l < GK_LANES; l++)
        sum2 += a->lanes2[i * GK_LANES + l];
    a->sums2[i] = sum2;
}

/* chunks: column sums of dy over a chunk of rows; chunks2, unless NULL: of dy times the normed x. */
KERNEL(sum_chunks)
{
    uint64_t c = i % a->cols, r = i / a->cols * GK_CHUNK;
    uint64_t end = r + GK_CHUNK < a->rows ? r + GK_CHUNK : a->rows;
    gk_real sum = 0, sum2 = 0;

    for (; r < end; r++) {
        gk_real dy = a->dy[r * a->cols + c];

        sum += dy;
        if (a->chunks2)
            sum2 += dy * ((a->x[r * a->cols + c] - a->mean[r]) * a->rstd[r]);
    }
    a->chunks[i] = sum;
    if (a->chunks2)
        a->chunks2[i] = sum2;
}

KERNEL(add_chunks)
{
    gk_real sum = 0, sum2 = 0;
    uint64_t end = (a->rows + GK_CHUNK - 1) / GK_CHUNK * a->cols;

    for (uint64_t at = i; at < end; at += a->cols)
        sum += a->chunks[at];
    a->grad[i] += sum;
    if (!a->chunks2)
        return;
    for (uint64_t at = i; at < end; at += a->cols)
        sum2 += a->chunks2[at];
    a->grad2[i] += sum2;
}

/* ---- layer norm ---- */

/* Elements of a row of n that lane l has. */
DEVICE uint64_t lane_count(uint64_t n, uint64_t l)
{
    return l < n ? (n - l - 1) / GK_LANES + 1 : 0;
}

/* lanes, lanes2: mean of the lane's elements, and the squares of their distances from it. */
KERNEL(norm_lanes)
{
    uint64_t l = i % GK_LANES, n = lane_count(a->cols, l);
    const gk_real *x = a->x + i / GK_LANES * a->cols;
    gk_real sum = 0, spread = 0, mean;

    for (uint64_t c = l; c < a->cols; c += GK_LANES)
        sum += x[c];
    mean = n ? sum / (gk_real)n : 0;
    for (uint64_t c = l; c < a->cols; c += GK_LANES)
        spread += (x[c] - mean) * (x[c] - mean);
    a->lanes[i] = mean;
    a->lanes2[i] = spread;
}

/* Parts with means of their own make a whole as in Chan, Golub and LeVeque 1983. */
KERNEL(norm_rows)
{
    const gk_real *means = a->lanes + i * GK_LANES, *spreads = a->lanes2 + i * GK_LANES;
    gk_real mean = 0, spread = 0;

    for (uint32_t l = 0; l < GK_LANES; l++)
        mean += (gk_real)lane_count(a->cols, l) * means[l];
    mean /= (gk_real)a->cols;
    for (uint32_t l = 0; l < GK_LANES; l++)
        spread +=
            spreads[l] + (gk_real)lane_count(a->cols, l) * (means[l] - mean) * (means[l] - mean);
    a->mean[i] = mean;
    a->rstd[i] = 1 / gk_sqrt(spread / (gk_real)a->cols + GK_NORM_EPS);
}

/* y, y16: either may be NULL. */
KERNEL(norm)
{
    uint64_t r = i / a->cols, c = i % a->cols;
    gk_real y = (a->x[i] - a->mean[r]) * a->rstd[r] * widen(a->gain[c]) + widen(a->bias[c]);

    if (a->y)
        a->y[i] = y;
    if (a->y16)
        a->y16[i] = narrow(y);
}

/* With e = dy * gain and h = (x - mean) * rstd: the lane's sums of e and of e * h. */
KERNEL(norm_back_lanes)
{
    uint64_t r = i / GK_LANES;
    gk_real sum = 0, dot = 0;

    for (uint64_t c = i % GK_LANES; c < a->cols; c += GK_LANES) {
        gk_real e = a->dy[r * a->cols + c] * widen(a->gain[c]);

        sum += e;
        dot += e * ((a->x[r * a->cols + c] - a->mean[r]) * a->rstd[r]);
    }
    a->lanes[i] = sum;
    a->lanes2[i] = dot;
}

/* d += rstd * (e - mean(e) - h * mean(e * h)). With overwrite d may be dy. */
KERNEL(norm_back)
{
    uint64_t r = i / a->cols, c = i % a->cols;
    gk_real e = a->dy[i] * widen(a->gain[c]), h = (a->x[i] - a->mean[r]) * a->rstd[r];
    gk_real dx =
        a->rstd[r] * (e - a->sums[r] / (gk_real)a->cols - h * (a->sums2[r] / (gk_real)a->cols));

    a->d[i] = a->overwrite ? dx : a->d[i] + dx;
}

/* ---- linear layers and GELU ---- */

/* y += bias, and add unless that is NULL. */
KERNEL(add_bias)
{
    a->y[i] += widen(a->bias[i % a->cols]) + (a->add ? a->add[i] : 0);
}

KERNEL(narrow_with_bias)
{
    a->y16[i] = narrow(a->x[i] + widen(a->bias[i % a->cols]));
}

/* z16 = x + bias, y16 = GELU of it, from what z16 holds so that backward sees the same. */
KERNEL(gelu)
{
    gk_half z = narrow(a->x[i] + widen(a->bias[i % a->cols]));
    gk_real x = widen(z);
    gk_real u = GK_GELU_SCALE * (x + GK_GELU_CUBIC * x * x * x);

    a->z16[i] = z;
    a->y16[i] = narrow((gk_real)0.5 * x * (1 + gk_tanh(u)));
}

/* d *= the derivative at x16; d16 the same. */
KERNEL(gelu_back)
{
    gk_real x = widen(a->x16[i]);
    gk_real t = gk_tanh(GK_GELU_SCALE * (x + GK_GELU_CUBIC * x * x * x));
    gk_real du = GK_GELU_SCALE * (1 + 3 * GK_GELU_CUBIC * x * x);
    gk_real d = a->d[i] * ((gk_real)0.5 * (1 + t) + (gk_real)0.5 * x * (1 - t * t) * du);

    a->d[i] = d;
    a->d16[i] = narrow(d);
}

/* ---- softmax: of attention, and of the head ---- */

/* Columns that a row sees. */
DEVICE uint64_t seen(const struct gk_args *a, uint64_t r)
{
    return a->tile ? a->first + r % a->tile + 1 : a->cols;
}

/* lanes, lanes2: the greatest of the lane's elements, and the sum of exp(x - that). */
KERNEL(softmax_lanes)
{
    uint64_t r = i / GK_LANES, end = seen(a, r);
    const gk_real *x = a->x + r * a->cols;
    gk_real max = GK_LEAST, sum = 0;

    for (uint64_t c = i % GK_LANES; c < end; c += GK_LANES)
        max = x[c] > max ? x[c] : max;
    for (uint64_t c = i % GK_LANES; c < end; c += GK_LANES)
        sum += gk_exp(x[c] - max);
    a->lanes[i] = max;
    a->lanes2[i] = sum;
}

/* sums, sums2: the row's greatest and its sum. A lane without elements has the sum 0. */
KERNEL(softmax_rows)
{
    const gk_real *maxima = a->lanes + i * GK_LANES, *parts = a->lanes2 + i * GK_LANES;
    gk_real max = GK_LEAST, sum = 0;

    for (uint32_t l = 0; l < GK_LANES; l++)
        max = maxima[l] > max ? maxima[l] : max;
    for (uint32_t l = 0; l < GK_LANES; l++)
        sum += parts[l] * gk_exp(maxima[l] - max);
    a->sums[i] = max;
    a->sums2[i] = sum;
}

KERNEL(softmax)
{
    uint64_t r = i / a->cols;

    a->y16[i] = narrow(i % a->cols < seen(a, r) ? gk_exp(a->x[i] - a->sums[r]) / a->sums2[r] : 0);
}

/* The lane's sum of p16 * dy. Where a row sees nothing p16 is 0. */
KERNEL(softmax_back_lanes)
{
    uint64_t r = i / GK_LANES;
    gk_real sum = 0;

    for (uint64_t c = i % GK_LANES; c < a->cols; c += GK_LANES)
        sum += widen(a->p16[r * a->cols + c]) * a->dy[r * a->cols + c];
    a->lanes[i] = sum;
}

KERNEL(softmax_back)
{
    a->d16[i] = narrow(widen(a->p16[i]) * (a->dy[i] - a->sums[i / a->cols]));
}

/* ---- cross entropy: x are logits (rows, cols), sums and sums2 those of softmax_rows ---- */

DEVICE uint8_t target(const struct gk_args *a, uint64_t r)
{
    return a->tokens[token_at(a, a->first + r) + 1];
}

/* y (rows,) */
KERNEL(cross_entropy)
{
    a->y[i] = gk_log(a->sums2[i]) - (a->x[i * a->cols + target(a, i)] - a->sums[i]);
}

KERNEL(cross_entropy_back)
{
    uint64_t r = i / a->cols;
    gk_real p = gk_exp(a->x[i] - a->sums[r]) / a->sums2[r];

    a->d16[i] = narrow((p - (i % a->cols == target(a, r))) * a->scale);
}

/* One thread: the mean over rows, of which chunks (chunks, 1) has the sums. */
KERNEL(mean_loss)
{
    double sum = 0;

    for (uint64_t c = 0; c < (a->rows + GK_CHUNK - 1) / GK_CHUNK; c++)
        sum += (double)a->chunks[c];
    a->loss[i] = sum / (double)a->rows;
}
