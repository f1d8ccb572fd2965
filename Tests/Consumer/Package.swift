// swift-tools-version:6.3
import PackageDescription

// A program that depends on the product Coroutine as any other package would. scripts/consumer builds and runs it, and
// checks that nothing else is fetched. It enables no upcoming features: clients must not need those that the library
// uses.
let package = Package(
  name: "consumer",
  dependencies: [
    // The name is given because the folder may be called anything.
    .package(name: "coroutine", path: "../..")
  ],
  targets: [
    .executableTarget(
      name: "Consumer",
      dependencies: [.product(name: "Coroutine", package: "coroutine")]
    ),
    // The README's first program.
    .executableTarget(name: "First", dependencies: [.product(name: "Coroutine", package: "coroutine")]),
    // Compiled, so that scripts/consumer finds the modules that Refused/Net.swift imports.
    .target(
      name: "Net",
      dependencies: [
        .product(name: "Coroutine", package: "coroutine"), .product(name: "CoroutineNet", package: "coroutine"),
      ]
    ),
    // Uses the products of traits without their traits, which must fetch nothing either. Compiled, so that
    // scripts/consumer finds the modules that Refused/Traits.swift imports.
    .target(
      name: "Traits",
      dependencies: [
        .product(name: "Coroutine", package: "coroutine"), .product(name: "CoroutineNIO", package: "coroutine"),
        .product(name: "CoroutineHTTP", package: "coroutine"), .product(name: "CoroutineLogging", package: "coroutine"),
        .product(name: "CoroutineMetrics", package: "coroutine"),
        .product(name: "CoroutineServiceLifecycle", package: "coroutine"),
        .product(name: "CoroutinePostgres", package: "coroutine"),
        .product(name: "CoroutineWork", package: "coroutine"),
      ]
    ),
    // Linked with --static-swift-stdlib.
    .executableTarget(name: "Static", dependencies: [.product(name: "Coroutine", package: "coroutine")]),
  ],
  swiftLanguageModes: [.v6]
)
