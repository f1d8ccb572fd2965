#if !NIO
// Without the trait NIO this module is empty, and a program that does not use it fetches nothing of SwiftNIO. A program
// that uses it all the same gets an error that names the trait, from the declarations below.

/// A channel of SwiftNIO in straight-line code; needs the trait NIO.
@available(*, unavailable, message: "CoroutineNIO needs the trait NIO: .package(…, traits: [\"NIO\"])")
public struct NIOCoroutineChannel<Inbound, Outbound> {}

/// Waits for a future; needs the trait NIO.
@available(*, unavailable, message: "CoroutineNIO needs the trait NIO: .package(…, traits: [\"NIO\"])")
public func co_await<Future>(_ future: Future) throws -> Never { fatalError("unavailable") }
#endif
