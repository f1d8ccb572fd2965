import CCoroutine
import Testing

/// A context whose body is a Swift closure, used by these tests.
///
/// Created and destroyed explicitly, like the C context that it wraps. The exchanged values are integers, so that a
/// test can compare what it sent and received.
struct Fiber {
  let context: UnsafeMutablePointer<cco_context>

  /// The closure, kept alive by the context's argument from creation until the body has run.
  private final class Body {
    let run: (Fiber) -> Void
    init(_ run: @escaping (Fiber) -> Void) { self.run = run }
  }

  /// An error of the C core.
  struct Refusal: Error, CustomStringConvertible {
    let status: cco_status
    var description: String { String(cString: cco_status_message(status)) }
  }

  init(context: UnsafeMutablePointer<cco_context>) { self.context = context }

  init(stack: Int = 64 << 10, _ body: @escaping (Fiber) -> Void) throws(Refusal) {
    let argument = Unmanaged.passRetained(Body(body))
    var made: UnsafeMutablePointer<cco_context>?
    let status = cco_create(stack, Self.entry, argument.toOpaque(), &made)
    guard status == CCO_OK, let made else {
      argument.release()
      throw Refusal(status: status)
    }
    context = made
  }

  private static let entry: cco_entry = { context, argument in
    let body = Unmanaged<Body>.fromOpaque(argument!).takeRetainedValue()
    body.run(Fiber(context: context))
    return nil
  }

  var state: cco_state { cco_state_of(context) }
  var high: UnsafeMutablePointer<CChar> { cco_high(context) }

  /// Runs the body up to its next suspend or its end, and returns the value that it sent (0 at its end).
  @discardableResult
  func resume(_ value: Int = 0) throws -> Int {
    var answer: UnsafeMutableRawPointer?
    let status = cco_resume(context, UnsafeMutableRawPointer(bitPattern: value), &answer)
    guard status == CCO_OK else { throw Refusal(status: status) }
    return Int(bitPattern: answer)
  }

  /// Parks the body, which is the caller, and returns the value that the next resume sends.
  @discardableResult
  func suspend(_ value: Int = 0) -> Int {
    var answer: UnsafeMutableRawPointer?
    let status = cco_suspend(context, UnsafeMutableRawPointer(bitPattern: value), &answer)
    precondition(status == CCO_OK, String(cString: cco_status_message(status)))
    return Int(bitPattern: answer)
  }

  /// Takes a new body, usually on the same stack: the pool gives back the one that it got last.
  mutating func replaceBody(_ body: @escaping (Fiber) -> Void) throws {
    try destroy()
    self = try Fiber(body)
  }

  func destroy() throws {
    dropUnusedBody()
    let status = cco_destroy(context)
    guard status == CCO_OK else { throw Refusal(status: status) }
  }

  /// A body that never ran still owns its closure.
  private func dropUnusedBody() {
    guard state == CCO_READY, let argument = context.pointee.argument else { return }
    Unmanaged<Body>.fromOpaque(argument).release()
    context.pointee.argument = nil
  }
}
