use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::words::words;

words! {
    /// Why a gate did not pass. The words are stable.
    Code {
        /// No reuse count was reported by a response.
        CachedCountMissing = "cached_count_missing",
        /// A reuse count is not an integer.
        CachedCountNotAnInteger = "cached_count_not_an_integer",
        /// A response reused prompt tokens.
        CachedCountNotZero = "cached_count_not_zero",
        /// The server processed fewer prompt tokens than the prompt has.
        PromptNotAllProcessed = "prompt_not_all_processed",
        /// There are no rows.
        NoRows = "no_rows",
        /// A selected prompt has no complete row.
        SelectedPromptDidNotRun = "selected_prompt_did_not_run",
        /// A row ended with an error.
        RowFailed = "row_failed",
        /// A row lacks the rate over the window.
        WindowMetricMissing = "window_metric_missing",
        /// A row's rate is not what its raw offsets give.
        RateDisagreesWithOffsets = "rate_disagrees_with_offsets",
        /// A row's offsets are missing, decrease or are not numbers.
        OffsetsUnusable = "offsets_unusable",
        /// Two rows have the same prompt.
        PromptHashesNotDistinct = "prompt_hashes_not_distinct",
        /// A row has fewer events than the window.
        EventsBelowWindow = "events_below_window",
        /// A row has fewer answer tokens than the window.
        CompletionTokensBelowWindow = "completion_tokens_below_window",
        /// An answer did not end by `stop` or `length`.
        FinishReasonUnknown = "finish_reason_unknown",

        /// The screening gate did not pass.
        FreshResponseScreeningFailed = "fresh_response_screening_failed",
        /// Only some prompts were asked for.
        PromptSubsetSelected = "prompt_subset_selected",
        /// A prompt of the suite has no complete row, or a row is of no prompt of the suite.
        FixedSuiteIncomplete = "fixed_suite_incomplete",
        /// The suite has too few prompts.
        FixedSuiteHasFewerThan12Prompts = "fixed_suite_has_fewer_than_12_prompts",
        /// Answers could not be 512 tokens long.
        MaxTokensMustEqual512 = "max_tokens_must_equal_512",
        /// The rate was not taken over 100 events.
        MetricWindowMustEqual100Events = "metric_window_must_equal_100_events",
        /// An answer does not cover the window.
        EveryCompletionMustCover100EventMetric = "every_completion_must_cover_100_event_metric",
        /// The end of text was ignored.
        IgnoreEosMustBeDisabled = "ignore_eos_must_be_disabled",
        /// The suite's prompts are too much alike.
        FixedSuiteLacksVariedPromptClasses = "fixed_suite_lacks_varied_prompt_classes",
        /// The identity gate did not pass.
        IdentityGateFailed = "identity_gate_failed",
        /// The prompt cache was not switched off in the requests.
        PromptCacheNotDisabled = "prompt_cache_not_disabled",
        /// Requests were sent before the first row.
        WarmUpWasSent = "warm_up_was_sent",
        /// A prompt was asked more than once.
        PromptAskedMoreThanOnce = "prompt_asked_more_than_once",
        /// Sampling was not greedy.
        SamplingNotGreedy = "sampling_not_greedy",
        /// The summary is not what the rows give.
        SummaryDisagreesWithRows = "summary_disagrees_with_rows",

        /// The model's digest is not recorded.
        TargetModelUnidentified = "target_model_unidentified",
        /// The draft model's digest is not recorded although a draft model is in use.
        DraftModelUnidentified = "draft_model_unidentified",
        /// The executable's digest is not recorded.
        BinaryUnidentified = "binary_unidentified",
        /// The build's fingerprint is not recorded.
        BuildUnidentified = "build_unidentified",
        /// The command line is not recorded.
        CommandUnrecorded = "command_unrecorded",
        /// The environment is not recorded.
        EnvironmentUnrecorded = "environment_unrecorded",
        /// The environment sets what is forbidden for evidence.
        EnvironmentForbidden = "environment_forbidden",
        /// The card is not recorded.
        CardUnidentified = "card_unidentified",
        /// The endpoint's card and the recorded card differ.
        CardsDiffer = "cards_differ",
        /// How many workers ran at once is not recorded.
        WorkersAtOnceUnrecorded = "workers_at_once_unrecorded",

        /// A result names no arm, card or period.
        AssignmentMissing = "assignment_missing",
        /// A card lacks one of the arms.
        CardLacksAnArm = "card_lacks_an_arm",
        /// Two results are of one card and period.
        PeriodRepeated = "period_repeated",
        /// There are fewer than two cards.
        FewerThanTwoCards = "fewer_than_two_cards",
        /// Every card began with the same arm.
        OneSequenceOnly = "one_sequence_only",
        /// The results are of different suites.
        SuitesDiffer = "suites_differ",
        /// The results were made with different settings.
        SettingsDiffer = "settings_differ",
        /// The results of one arm are of different recipes.
        ArmNotHomogeneous = "arm_not_homogeneous",
    }
}

/// What a gate found: passed when there is no code.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct GateOutcome {
    /// Whether the gate let the result through.
    #[schemars(example = true)]
    pub passed: bool,
    /// Why not, in stable words.
    #[schemars(example = json!(["cached_count_not_zero"]))]
    pub codes: Vec<String>,
    /// The same with rows and values, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(example = json!(["row 3 (release-plan): usage reports 3 cached tokens"]))]
    pub details: Vec<String>,
}

/// Collects codes, each once, with every detail.
#[derive(Debug, Default)]
pub(super) struct Findings {
    codes: Vec<Code>,
    details: Vec<String>,
}

impl Findings {
    pub(super) fn add(&mut self, code: Code, detail: impl Into<String>) {
        if !self.codes.contains(&code) {
            self.codes.push(code);
        }
        self.details.push(detail.into());
    }

    pub(super) fn check(&mut self, holds: bool, code: Code, detail: impl Into<String>) {
        if !holds {
            self.add(code, detail);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.codes.is_empty()
    }

    pub(super) fn outcome(self) -> GateOutcome {
        GateOutcome {
            passed: self.codes.is_empty(),
            codes: self.codes.into_iter().map(|code| code.as_str().to_owned()).collect(),
            details: self.details,
        }
    }
}
