/// The words of what coroutines share; the models tell no simulated world.
@usableFromInline
struct Shared<Words: ~Copyable>: ~Copyable {
  @usableFromInline let known: Words

  @inlinable
  init(_ words: consuming Words) { known = words }

  @inlinable var touched: Words {
    _read { yield known }
  }

  @inlinable
  borrowing func touch() {}
}
