#if !HTTP
// Without the trait HTTP this module has no functions, and a package that depends on it needs neither llhttp nor
// OpenSSL. If a program uses the module without the trait, the declarations below produce a compiler error that names
// the trait.

/// HTTP/1.1 servers in straight-line code; needs the trait HTTP.
@available(*, unavailable, message: "CoroutineHTTP needs the trait HTTP: .package(…, traits: [\"HTTP\"])")
public enum HTTPServer {}

/// HTTP/1.1 requests in straight-line code; needs the trait HTTP.
@available(*, unavailable, message: "CoroutineHTTP needs the trait HTTP: .package(…, traits: [\"HTTP\"])")
public final class HTTPClient {}

/// TLS on connections; needs the trait HTTP.
@available(*, unavailable, message: "CoroutineHTTP needs the trait HTTP: .package(…, traits: [\"HTTP\"])")
public enum TLS {}
#endif
