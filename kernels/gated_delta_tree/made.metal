// What is made of a head's a and b, and of keys and queries of any length; problem.py has the formulas.
// Named by its precision: of the plain names, Metal takes the fast versions from macOS 15 on, whatever its math mode.
inline float gate_of(float a, float log_rate, float bias) {
    const float x = a + bias;
    const float e = precise::exp(-fabs(x));
    // The logarithm of 1 + e. Of a small e, which the sum would round away, by its series.
    const float tail = 1.0f / 4.0f - e * (1.0f / 5.0f - e * (1.0f / 6.0f - e * (1.0f / 7.0f)));
    const float series = e * (1.0f - e * (1.0f / 2.0f - e * (1.0f / 3.0f - e * tail)));
    const float softplus = max(x, 0.0f) + (e < 0.1f ? series : precise::log(1.0f + e));
    return precise::exp(-precise::exp(log_rate) * softplus);
}
inline float strength_of(float b) { return 1.0f / (1.0f + precise::exp(-b)); }
inline float shortened_by(float square) { return precise::rsqrt(square + 1e-6f); }
