// What is made of a head's a and b, and of keys and queries of any length; problem.py has the formulas.
inline float gate_of(float a, float log_rate, float bias) {
    const float x = a + bias;
    const float softplus = fmaxf(x, 0.0f) + logf(1.0f + expf(-fabsf(x)));
    return expf(-expf(log_rate) * softplus);
}
inline float strength_of(float b) { return 1.0f / (1.0f + expf(-b)); }
inline float shortened_by(float square) { return rsqrtf(square + 1e-6f); }
