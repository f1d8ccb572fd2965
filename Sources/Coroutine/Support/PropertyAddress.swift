/// The address of a stored property, `offset` bytes behind an object's header.
///
/// For properties that other threads use while this one does: a pointer made by an inout access would claim the property
/// for ever. Nothing is kept for it in the object; whoever declares such a property checks the place, once, in its `init`.
/// The address does not keep the object alive: who waits through it holds the object until the wait is over.
// Sound because an object does not move, and its stored properties lie in the order of their declaration.
@inlinable @inline(__always)
func propertyAddress<Value: ~Copyable>(
  in object: AnyObject,
  at offset: Int,
  as type: Value.Type
) -> UnsafeMutablePointer<Value> {
  Unmanaged.passUnretained(object).toOpaque().advanced(by: objectHeader + offset).assumingMemoryBound(to: type)
}

/// The way back.
// Sound for the same reason, for a property of which `propertyAddress` gives the address.
@inlinable @inline(__always)
func object<Object: AnyObject>(holding property: UnsafeRawPointer, at offset: Int) -> Unmanaged<Object> {
  Unmanaged.fromOpaque(property.advanced(by: -(objectHeader + offset)))
}

/// The type and the reference counts.
@inlinable var objectHeader: Int { 2 * MemoryLayout<UInt>.size }

/// What a property's declarer calls in its `init`: `address` is the property's.
func checkAddress<Value: ~Copyable>(_ address: UnsafeMutablePointer<Value>, of property: inout Value) {
  let actual = withUnsafeMutablePointer(to: &property) { $0 }
  precondition(actual == address, "a stored property does not lie where its object's address says")
}
