// Old names of types that are nested in others now, or have a longer name. Each stays for one release, as the calls of
// OldCalls.swift do.

/// The old name of ``AnyPromise/Losers``.
@available(*, deprecated, renamed: "AnyPromise.Losers")
public typealias Losers = AnyPromise.Losers

/// The old name of ``GeneratorStep``.
@available(*, deprecated, renamed: "GeneratorStep")
public typealias Step<Element, Return> = GeneratorStep<Element, Return>

/// The old name of ``AnyPromise/Either``.
@available(*, deprecated, renamed: "AnyPromise.Either")
public typealias Either<First: Sendable, Second: Sendable> = AnyPromise.Either<First, Second>

/// The old name of ``CoroutineRuntime/Stall``.
@available(*, deprecated, renamed: "CoroutineRuntime.Stall")
public typealias Stall = CoroutineRuntime.Stall

/// The old name of ``AwaitableObservation``.
@available(*, deprecated, renamed: "AwaitableObservation")
public typealias Observation = AwaitableObservation

/// The old name of the result of ``Generator/asyncElements(on:)``, which programs need not name.
@available(*, deprecated, message: "write some AsyncSequence<Element, any Error>")
public typealias GeneratorAsyncElements<Element, Input, Return> = _GeneratorAsyncElements<Element, Input, Return>

/// The old name of what a ``LaunchTarget`` returns, which programs neither make nor use.
@available(*, deprecated, message: "programs neither make nor use it")
public typealias LaunchDestination = _LaunchDestination
