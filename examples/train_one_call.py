"""One call trains an agent; the run directory that it leaves is then used to evaluate and to act.

The same from a terminal: `palaestra train ppo CartPole-v1 --trainer.total-env-steps 40000 --seed 1`.
"""

import palaestra


def main() -> None:
    done = palaestra.train("ppo", "CartPole-v1", trainer__total_env_steps=40_000, run__seed=1)
    print("run directory       ", done.directory)
    print("at the end          ", done.result.evaluation)

    # `policy/` holds the policy of the best evaluation; 50 fresh episodes say how good it is.
    print("best, new episodes  ", palaestra.evaluate_run(str(done.directory), episodes=50))

    # Nothing of the training is needed to act: specs, weights and normalisation are in the artefact.
    policy = palaestra.load_policy(done.directory / "policy")
    for observation in ([0.0, 0.0, 0.05, 0.5], [0.0, 0.0, -0.05, -0.5]):
        print(f"pole at {observation[2]:+.2f} rad    ", "push right" if policy(observation) else "push left")


if __name__ == "__main__":
    main()
