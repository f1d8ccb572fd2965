/// A sequence that ends by a failure as it ends by its end, because `next()` cannot throw.
///
/// The consumer throws the failure after the last element. Otherwise a part of the elements would look like all of
/// them.
@usableFromInline
protocol FallibleSource {
  /// The failure that has ended the sequence.
  var failure: (any Error)? { get }
}

extension Sequence {
  /// Throws the failure that has ended this sequence, if it is one that can fail.
  @usableFromInline
  package func throwFailure() throws {
    if let failure = (self as? any FallibleSource)?.failure { throw failure }
  }
}
