; C = A · Bᵀ, f16 → f32, tile 64x64x32, 4 waves. Emitted by LLVM (llvmlite 0.50) from IR that the
; project's prototype of the AMD target generated, with made-up source lines: gemm.py 8 addresses, 9 global loads,
; 10 shared writes and barriers, 11 shared reads, 12 mma, 13 stores.
	.amdgcn_target "amdgcn-amd-amdhsa--gfx942"
	.amdhsa_code_object_version 5
	.text
	.globl	gemm
	.p2align	8
	.type	gemm,@function
gemm:
.Lfunc_begin0:
	.file	1 "." "gemm.py"
	.loc	1 0 0
	.cfi_sections .debug_frame
	.cfi_startproc
	s_load_dwordx4 s[12:15], s[0:1], 0x0
	s_load_dwordx2 s[16:17], s[0:1], 0x10
.Ltmp0:
	.loc	1 8 5 prologue_end
	s_load_dwordx4 s[4:7], s[0:1], 0x18
	s_lshl_b32 s18, s3, 6
	v_lshrrev_b32_e32 v1, 2, v0
	v_lshlrev_b32_e32 v2, 3, v0
	v_and_b32_e32 v21, 24, v2
	v_or_b32_e32 v2, s18, v1
	s_waitcnt lgkmcnt(0)
	s_lshl_b32 s7, s2, 6
	v_mul_lo_u32 v2, s6, v2
	s_mul_i32 s0, s4, s6
	v_add_lshl_u32 v18, v2, v21, 1
	v_or_b32_e32 v2, s7, v1
	s_and_b32 s1, s13, 0xffff
	s_lshl_b32 s2, s0, 1
	s_mov_b32 s3, 0x27000
	s_mov_b32 s0, s12
	s_mul_i32 s4, s5, s6
	v_mul_lo_u32 v2, s6, v2
	s_and_b32 s9, s15, 0xffff
	s_lshl_b32 s10, s4, 1
	s_mov_b32 s8, s14
	s_mov_b32 s11, s3
	v_add_lshl_u32 v19, v2, v21, 1
	.loc	1 9 5
	buffer_load_dwordx4 v[26:29], v18, s[0:3], 0 offen
	buffer_load_dwordx4 v[30:33], v19, s[8:11], 0 offen
	.loc	1 8 5
	v_readfirstlane_b32 s13, v0
	s_lshr_b32 s15, s13, 2
	v_and_b32_e32 v23, 15, v0
	v_bfe_u32 v20, v0, 4, 2
	v_mul_u32_u24_e32 v0, 40, v1
	s_lshr_b32 s19, s13, 1
	s_and_b32 s13, s15, 0x3fffffe0
	s_movk_i32 s0, 0x50
	v_lshlrev_b32_e32 v24, 4, v20
	v_add_lshl_u32 v22, v0, v21, 1
	v_and_or_b32 v21, s19, 32, v23
	v_or_b32_e32 v0, s13, v23
	s_movk_i32 s8, 0x1400
	v_mul_u32_u24_e32 v23, 0x50, v21
	v_mad_u64_u32 v[0:1], s[20:21], v0, s0, v[24:25]
	s_mov_b32 s4, 0
	v_mov_b32_e32 v6, 0
	v_mov_b32_e32 v7, 0
	v_mov_b32_e32 v8, 0
	v_mov_b32_e32 v9, 0
	v_mov_b32_e32 v2, 0
	v_mov_b32_e32 v3, 0
	v_mov_b32_e32 v4, 0
	v_mov_b32_e32 v5, 0
	v_mov_b32_e32 v10, 0
	v_mov_b32_e32 v11, 0
	v_mov_b32_e32 v12, 0
	v_mov_b32_e32 v13, 0
	v_mov_b32_e32 v14, 0
	v_mov_b32_e32 v15, 0
	v_mov_b32_e32 v16, 0
	v_mov_b32_e32 v17, 0
	v_add3_u32 v1, v23, v24, s8
	s_lshl_b32 s6, s6, 1
	s_mov_b32 s8, s14
	s_mov_b32 s0, s12
	.loc	1 10 5
	s_waitcnt vmcnt(1)
	ds_write_b128 v22, v[26:29]
	s_waitcnt vmcnt(0)
	ds_write_b128 v22, v[30:33] offset:5120
	s_waitcnt lgkmcnt(0)
	s_barrier
.LBB0_1:
	.loc	1 11 5
	ds_read_b128 v[28:31], v0
	ds_read_b128 v[32:35], v1
	ds_read_b128 v[36:39], v0 offset:1280
	ds_read_b128 v[40:43], v1 offset:1280
	.loc	1 8 5
	s_add_i32 s4, s4, 64
	.loc	1 9 5
	buffer_load_dwordx4 v[24:27], v18, s[0:3], s4 offen
	.loc	1 12 5
	s_waitcnt lgkmcnt(2)
	v_mfma_f32_16x16x16_f16 v[14:17], v[28:29], v[32:33], v[14:17]
	.loc	1 8 5
	s_cmp_lt_u32 s4, s6
	.loc	1 12 5
	s_waitcnt lgkmcnt(0)
	v_mfma_f32_16x16x16_f16 v[10:13], v[28:29], v[40:41], v[10:13]
	v_mfma_f32_16x16x16_f16 v[14:17], v[30:31], v[34:35], v[14:17]
	v_mfma_f32_16x16x16_f16 v[10:13], v[30:31], v[42:43], v[10:13]
	.loc	1 9 5
	buffer_load_dwordx4 v[28:31], v19, s[8:11], s4 offen
	.loc	1 12 5
	v_mfma_f32_16x16x16_f16 v[2:5], v[36:37], v[32:33], v[2:5]
	.loc	1 10 5
	s_barrier
	s_waitcnt vmcnt(1)
	ds_write_b128 v22, v[24:27]
	s_waitcnt vmcnt(0)
	ds_write_b128 v22, v[28:31] offset:5120
	.loc	1 12 5
	v_mfma_f32_16x16x16_f16 v[6:9], v[36:37], v[40:41], v[6:9]
	.loc	1 10 5
	s_waitcnt lgkmcnt(0)
	s_barrier
	.loc	1 12 5
	v_mfma_f32_16x16x16_f16 v[2:5], v[38:39], v[34:35], v[2:5]
	v_mfma_f32_16x16x16_f16 v[6:9], v[38:39], v[42:43], v[6:9]
	.loc	1 8 5
	s_cbranch_scc1 .LBB0_1
	s_add_i32 s13, s13, s18
	v_lshl_or_b32 v1, v20, 2, s13
	v_or_b32_e32 v0, s7, v21
	v_mad_u64_u32 v[0:1], s[0:1], v1, s5, v[0:1]
	v_mov_b32_e32 v1, 0
	v_lshl_add_u64 v[18:19], v[0:1], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[18:19], v14, off
	.loc	1 8 5
	v_add_u32_e32 v18, 16, v0
	v_mov_b32_e32 v19, v1
	v_lshl_add_u64 v[18:19], v[18:19], 2, s[16:17]
	v_add_u32_e32 v0, s5, v0
	.loc	1 13 5
	global_store_dword v[18:19], v10, off
	.loc	1 8 5
	v_lshl_add_u64 v[18:19], v[0:1], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[18:19], v15, off
	.loc	1 8 5
	v_add_u32_e32 v14, 16, v0
	v_mov_b32_e32 v15, v1
	v_lshl_add_u64 v[14:15], v[14:15], 2, s[16:17]
	v_add_u32_e32 v0, s5, v0
	.loc	1 13 5
	global_store_dword v[14:15], v11, off
	.loc	1 8 5
	v_lshl_add_u64 v[10:11], v[0:1], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[10:11], v16, off
	.loc	1 8 5
	v_add_u32_e32 v10, 16, v0
	v_mov_b32_e32 v11, v1
	v_lshl_add_u64 v[10:11], v[10:11], 2, s[16:17]
	v_add_u32_e32 v0, s5, v0
	.loc	1 13 5
	global_store_dword v[10:11], v12, off
	.loc	1 8 5
	v_lshl_add_u64 v[10:11], v[0:1], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[10:11], v17, off
	.loc	1 8 5
	v_add_u32_e32 v10, 16, v0
	v_mov_b32_e32 v11, v1
	v_lshl_add_u64 v[10:11], v[10:11], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[10:11], v13, off
	.loc	1 8 5
	v_mad_u64_u32 v[10:11], s[0:1], s5, 13, v[0:1]
	v_mov_b32_e32 v11, v1
	v_lshl_add_u64 v[12:13], v[10:11], 2, s[16:17]
	v_add_u32_e32 v0, 16, v10
	.loc	1 13 5
	global_store_dword v[12:13], v2, off
	.loc	1 8 5
	v_lshl_add_u64 v[12:13], v[0:1], 2, s[16:17]
	v_add_u32_e32 v0, s5, v10
	v_lshl_add_u64 v[10:11], v[0:1], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[12:13], v6, off
	global_store_dword v[10:11], v3, off
	.loc	1 8 5
	v_add_u32_e32 v2, 16, v0
	v_mov_b32_e32 v3, v1
	v_lshl_add_u64 v[2:3], v[2:3], 2, s[16:17]
	v_add_u32_e32 v0, s5, v0
	.loc	1 13 5
	global_store_dword v[2:3], v7, off
	.loc	1 8 5
	v_lshl_add_u64 v[2:3], v[0:1], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[2:3], v4, off
	.loc	1 8 5
	v_add_u32_e32 v2, 16, v0
	v_mov_b32_e32 v3, v1
	v_lshl_add_u64 v[2:3], v[2:3], 2, s[16:17]
	v_add_u32_e32 v0, s5, v0
	.loc	1 13 5
	global_store_dword v[2:3], v8, off
	.loc	1 8 5
	v_lshl_add_u64 v[2:3], v[0:1], 2, s[16:17]
	v_add_u32_e32 v0, 16, v0
	v_lshl_add_u64 v[0:1], v[0:1], 2, s[16:17]
	.loc	1 13 5
	global_store_dword v[2:3], v5, off
	global_store_dword v[0:1], v9, off
	.loc	1 8 5
	s_endpgm
.Ltmp1:
	.section	.rodata,"a",@progbits
	.p2align	6, 0x0
	.amdhsa_kernel gemm
		.amdhsa_group_segment_fixed_size 10240
		.amdhsa_private_segment_fixed_size 0
		.amdhsa_kernarg_size 36
		.amdhsa_user_sgpr_count 2
		.amdhsa_user_sgpr_dispatch_ptr 0
		.amdhsa_user_sgpr_queue_ptr 0
		.amdhsa_user_sgpr_kernarg_segment_ptr 1
		.amdhsa_user_sgpr_dispatch_id 0
		.amdhsa_user_sgpr_kernarg_preload_length 0
		.amdhsa_user_sgpr_kernarg_preload_offset 0
		.amdhsa_user_sgpr_private_segment_size 0
		.amdhsa_uses_dynamic_stack 0
		.amdhsa_enable_private_segment 0
		.amdhsa_system_sgpr_workgroup_id_x 1
		.amdhsa_system_sgpr_workgroup_id_y 1
		.amdhsa_system_sgpr_workgroup_id_z 0
		.amdhsa_system_sgpr_workgroup_info 0
		.amdhsa_system_vgpr_workitem_id 0
		.amdhsa_next_free_vgpr 73
		.amdhsa_next_free_sgpr 91
		.amdhsa_accum_offset 44
		.amdhsa_reserve_vcc 0
		.amdhsa_reserve_xnack_mask 1
		.amdhsa_float_round_mode_32 0
		.amdhsa_float_round_mode_16_64 0
		.amdhsa_float_denorm_mode_32 3
		.amdhsa_float_denorm_mode_16_64 3
		.amdhsa_dx10_clamp 1
		.amdhsa_ieee_mode 1
		.amdhsa_fp16_overflow 0
		.amdhsa_tg_split 0
		.amdhsa_exception_fp_ieee_invalid_op 0
		.amdhsa_exception_fp_denorm_src 0
		.amdhsa_exception_fp_ieee_div_zero 0
		.amdhsa_exception_fp_ieee_overflow 0
		.amdhsa_exception_fp_ieee_underflow 0
		.amdhsa_exception_fp_ieee_inexact 0
		.amdhsa_exception_int_div_zero 0
	.end_amdhsa_kernel
	.text
.Lfunc_end0:
	.size	gemm, .Lfunc_end0-gemm
	.cfi_endproc

	.set gemm.num_vgpr, 44
	.set gemm.num_agpr, 0
	.set gemm.numbered_sgpr, 22
	.set gemm.num_named_barrier, 0
	.set gemm.private_seg_size, 0
	.set gemm.uses_vcc, 0
	.set gemm.uses_flat_scratch, 0
	.set gemm.has_dyn_sized_stack, 0
	.set gemm.has_recursion, 0
	.set gemm.has_indirect_call, 0
	.p2alignl 6, 3212836864
	.fill 256, 4, 3212836864
	.section	.AMDGPU.gpr_maximums,"",@progbits
	.set amdgpu.max_num_vgpr, 0
	.set amdgpu.max_num_agpr, 0
	.set amdgpu.max_num_sgpr, 0
	.set amdgpu.max_num_named_barrier, 0
	.text
	.section	.debug_abbrev,"",@progbits
	.byte	1
	.byte	17
	.byte	0
	.byte	37
	.byte	14
	.byte	19
	.byte	5
	.byte	3
	.byte	14
	.byte	16
	.byte	23
	.byte	27
	.byte	14
	.byte	17
	.byte	1
	.byte	18
	.byte	6
	.byte	0
	.byte	0
	.byte	0
	.section	.debug_info,"",@progbits
.Lcu_begin0:
	.long	.Ldebug_info_end0-.Ldebug_info_start0
.Ldebug_info_start0:
	.short	4
	.long	.debug_abbrev
	.byte	8
	.byte	1
	.long	.Linfo_string0
	.short	20
	.long	.Linfo_string1
	.long	.Lline_table_start0
	.long	.Linfo_string2
	.quad	.Lfunc_begin0
	.long	.Lfunc_end0-.Lfunc_begin0
.Ldebug_info_end0:
	.section	.debug_str,"MS",@progbits,1
.Linfo_string0:
	.asciz	"tilewave"
.Linfo_string1:
	.asciz	"gemm.py"
.Linfo_string2:
	.asciz	"."
	.section	".note.GNU-stack","",@progbits
	.amdgpu_metadata
---
amdhsa.kernels:
  - .agpr_count:     0
    .args:
      - .actual_access:  read_only
        .address_space:  global
        .name:           A
        .offset:         0
        .size:           8
        .value_kind:     global_buffer
      - .actual_access:  read_only
        .address_space:  global
        .name:           B
        .offset:         8
        .size:           8
        .value_kind:     global_buffer
      - .actual_access:  write_only
        .address_space:  global
        .name:           C
        .offset:         16
        .size:           8
        .value_kind:     global_buffer
      - .name:           M
        .offset:         24
        .size:           4
        .value_kind:     by_value
      - .name:           N
        .offset:         28
        .size:           4
        .value_kind:     by_value
      - .name:           K
        .offset:         32
        .size:           4
        .value_kind:     by_value
    .group_segment_fixed_size: 10240
    .kernarg_segment_align: 8
    .kernarg_segment_size: 36
    .max_flat_workgroup_size: 256
    .name:           gemm
    .private_segment_fixed_size: 0
    .sgpr_count:     28
    .sgpr_spill_count: 0
    .symbol:         gemm.kd
    .uniform_work_group_size: 1
    .uses_dynamic_stack: false
    .vgpr_count:     44
    .vgpr_spill_count: 0
    .wavefront_size: 64
amdhsa.target:   amdgcn-amd-amdhsa--gfx942
amdhsa.version:
  - 1
  - 2
...

	.end_amdgpu_metadata
	.section	.debug_line,"",@progbits
.Lline_table_start0:
